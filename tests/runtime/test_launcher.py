"""The supervisor with a launcher that starts no processes."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from runtime_support import Bench, bench
from support import eventually

from dlicmd.contract import wire
from dlicmd.contract.states import ERROR, FINISHED, KILLED, PENDING, RUNNING
from local_backend.runtime.launcher import Held, LostRun, Outcome, RunOrder
from local_backend.runtime.loop import Loop
from local_backend.runtime.paths import ExecPaths
from local_backend.runtime.resizing import ResizeError
from local_backend.scheduler.model import Allocation, Machine
from local_backend.scheduler.slots import cpu_slots
from local_backend.store import holdings


class FakeRun:
    """A run that the test begins and ends."""

    connected = True
    due: float | None = None

    def __init__(self) -> None:
        self.begun = self.ended = self.stopped = False
        self.refused: str | None = None
        self.held: Held | None = None
        self.progress: Mapping[str, Any] = {}
        self.allocations: list[Allocation] = []
        self.result: Outcome | LostRun = LostRun("the test ended it")
        self._pipe: tuple[int, ...] = os.pipe()
        self.descriptors = [self._pipe[0]]

    def begin(self) -> None:
        os.write(self._pipe[1], b"b")

    def end(self, result: Outcome | LostRun) -> None:
        self.result = result
        os.write(self._pipe[1], b"e")

    def on_ready(self, ready: Collection[int]) -> bool:
        said = os.read(self._pipe[0], 100)
        self.begun, self.ended = self.begun or b"b" in said, b"e" in said
        if self.ended:
            self.close()
        return True

    def tick(self) -> None: ...

    def allocate(self, allocation: Allocation) -> None:
        self.allocations.append(allocation)

    def stop(self) -> None:
        self.stopped = True

    def kill(self) -> None: ...

    def cpu_seconds(self) -> float:
        return 0.0

    def call_off(self) -> bool:
        return True

    def outcome(self) -> Outcome | LostRun:
        return self.result

    def close(self) -> None:
        for fd in self._pipe:
            os.close(fd)
        self._pipe, self.descriptors = (), []


class FakeLauncher:
    """2 slots without a machine."""

    due: float | None = None
    loops: tuple[Loop, ...] = ()

    def __init__(self, found: FakeRun | Outcome | LostRun | None = None) -> None:
        """`found` is the answer of `adopt`."""
        self.machine = Machine(cpu_slots(2))
        self.status: dict[str, object] = {}
        self.descriptors: list[int] = []
        self.busy = False
        self.found = found
        self.prepared: list[RunOrder] = []
        self.runs: list[FakeRun] = []
        self.restarted: list[tuple[str, float]] = []
        #: Whether a lost exec may start again.
        self.again = True
        self.swept: list[str] = []
        #: Number of processes that ended attempts leave; number of next calls of `sweep`, and of `adopt`, that fail.
        self.left = self.stuck = self.blind = 0
        self.changed: Callable[[], None] = lambda: None

    def warm_up(self) -> None: ...

    def watch_slots(self, held: Callable[[], Collection[str]], changed: Callable[[], None]) -> None:
        self.changed = changed

    def close(self) -> None: ...

    def on_ready(self, ready: Collection[int]) -> None: ...

    def tick(self) -> None: ...

    @contextmanager
    def claim(self, paths: ExecPaths) -> Iterator[bool]:
        yield not self.busy

    def prepare(self, order: RunOrder) -> None:
        self.prepared.append(order)

    def start(self, order: RunOrder, *, warm: bool) -> FakeRun:
        self.runs.append(FakeRun())
        return self.runs[-1]

    def adopt(self, paths: ExecPaths, attempt: int) -> FakeRun | Outcome | LostRun | None:
        if self.blind:
            self.blind -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return self.found

    def restarts(self, paths: ExecPaths, step: float) -> bool:
        self.restarted.append((paths.exec_id, step))
        return self.again

    def sweep_strays(self, kept: Collection[str], last: int) -> int:
        return 0

    def sweep(self, paths: ExecPaths) -> int:
        self.swept.append(paths.exec_id)
        if self.stuck:
            self.stuck -= 1
            raise TimeoutError("a process does not end")
        return self.left

    def run(self, number: int = 0) -> FakeRun:
        """The run with this number, when it is there."""
        eventually(lambda: len(self.runs) > number, "the attempt is started")
        return self.runs[number]


ELASTIC: dict[str, Any] = {"framework": "edtPyTorch", "elastic": True, "num_worker": 2}


def ended(state: str) -> Outcome:
    return Outcome(1, state, 1_800_000_000.0, 0)


@contextmanager
def bench_on(home: Path, launcher: FakeLauncher) -> Iterator[Bench]:
    with bench(home, launcher=lambda _: launcher) as one:
        yield one


def running(one: Bench, launcher: FakeLauncher) -> str:
    """Submit an exec and begin it; return its id."""
    job = one.submit("")
    launcher.run().begin()
    one.wait_running(job)
    return job


def test_a_job_runs_in_any_launcher(tmp_path: Path) -> None:
    with bench_on(tmp_path, launcher := FakeLauncher()) as one:
        job = running(one, launcher)
        (order,) = launcher.prepared
        assert (order.workload.id, order.attempt, [slot.id for slot in order.slots]) == (job, 1, ["cpu-0"])
        launcher.run().end(ended(FINISHED))
        row = one.wait(job)
    assert (row.state, row.exit_code, row.end_time) == (FINISHED, 0, 1_800_000_000.0)
    assert launcher.swept == [job], "the program may have written the outcome, and killed its runner"


def test_a_stop_reaches_the_run(tmp_path: Path) -> None:
    with bench_on(tmp_path, launcher := FakeLauncher()) as one:
        job = running(one, launcher)
        one.stop(job)
        eventually(lambda: launcher.run().stopped, "the run is asked to end")
        launcher.run().end(ended(KILLED))
        assert one.wait(job).state == KILLED


def test_a_lost_run_ends_its_exec_and_is_swept(tmp_path: Path) -> None:
    with bench_on(tmp_path, launcher := FakeLauncher()) as one:
        job = running(one, launcher)
        launcher.run().end(LostRun("its node is gone"))
        row = one.wait(job)
    assert (row.state, row.reason, row.message) == (ERROR, wire.LOST, "its node is gone; no process of the job is left")
    assert launcher.swept == [job]


def test_an_attempt_is_counted_only_when_no_earlier_one_lives(tmp_path: Path) -> None:
    with bench_on(tmp_path, launcher := FakeLauncher()) as one:
        launcher.busy = True
        job = one.submit("")
        eventually(lambda: one.row(job).state == PENDING, "the job is pending")
        assert one.supervisor.completes_turn(60.0)  # type: ignore[attr-defined]
        assert one.row(job).attempt == 0 and not launcher.prepared
        launcher.busy = False
        launcher.run().begin()
        one.wait_running(job)
        assert one.row(job).attempt == 1


def test_slots_out_of_service_get_no_jobs(tmp_path: Path) -> None:
    with bench_on(tmp_path, launcher := FakeLauncher()) as one:
        launcher.machine = Machine(cpu_slots(2), drained={"cpu-0": "it is broken"})
        launcher.changed()
        job = running(one, launcher)
        assert json.loads(one.row(job).slots or "") == ["cpu-1"]
        assert [place.drained for place in one.supervisor.places()] == ["it is broken", None]  # type: ignore[attr-defined]


#: A plain program may have had effects, so it starts again only after a restart of the machine.
FATES = [
    (ended(FINISHED), 0, False, True, FINISHED),
    (ended(FINISHED), 1, False, True, FINISHED),
    (LostRun("its runner is gone"), 0, False, True, ERROR),
    (LostRun("its node is gone", rebooted=True), 0, False, True, PENDING),
    (LostRun("its node is gone", rebooted=True), 0, False, False, ERROR),
    (LostRun("its runner is gone"), 0, True, True, PENDING),
    (LostRun("its runner is gone"), 0, True, False, ERROR),
    (None, 0, False, True, PENDING),
    (None, 1, False, True, ERROR),
]


@pytest.mark.parametrize("fate", FATES)
def test_the_next_server_records_what_its_launcher_found(
    tmp_path: Path, fate: tuple[Outcome | LostRun | None, int, bool, bool, str]
) -> None:
    found, left, elastic, again, state = fate
    with bench_on(tmp_path, first := FakeLauncher()) as one:
        job = one.submit("", **(ELASTIC if elastic else {}))
        first.run().begin()
        one.wait_running(job)
    second = FakeLauncher(found)
    second.left, second.again = left, again
    second.busy = True  # an exec that is queued again stays pending
    with bench_on(tmp_path, second) as one:
        row = one.row(job)
    assert (row.state, row.attempt, row.slots) == (state, 1, None)
    assert second.swept == [job]
    asked = isinstance(found, LostRun) and (elastic or found.rebooted)
    assert second.restarted == [(job, -1.0)] * asked


def test_an_elastic_job_whose_runner_is_lost_starts_again(tmp_path: Path) -> None:
    with bench_on(tmp_path, launcher := FakeLauncher()) as one:
        job = one.submit("", **ELASTIC)
        launcher.run().begin()
        one.wait_running(job)
        launcher.run().progress = {wire.STEP: 7}
        launcher.run().end(LostRun("its runner is gone"))
        launcher.run(1).begin()
        eventually(lambda: one.history(job)[-2:] == [PENDING, RUNNING], "the job runs again")
        assert (launcher.restarted, one.row(job).attempt) == ([(job, 7)], 2)
        launcher.run(1).end(replace(ended(FINISHED), attempt=2))
        assert one.wait(job).state == FINISHED


def test_an_elastic_job_that_is_being_stopped_does_not_start_again(tmp_path: Path) -> None:
    with bench_on(tmp_path, launcher := FakeLauncher()) as one:
        job = one.submit("", **ELASTIC)
        launcher.run().begin()
        one.wait_running(job)
        one.stop(job)
        eventually(lambda: launcher.run().stopped, "the run is asked to end")
        launcher.run().end(LostRun("its runner is gone"))
        assert one.wait(job).state == KILLED
    assert not launcher.restarted


def test_the_next_server_adopts_a_run(tmp_path: Path) -> None:
    with bench_on(tmp_path, first := FakeLauncher()) as one:
        job = running(one, first)
    second = FakeLauncher(run := FakeRun())
    run.begun = True
    run.held = Held(0, ("cpu-0",), ("cpu-0",))
    with bench_on(tmp_path, second) as one:
        assert one.row(job).state == RUNNING
        run.end(ended(FINISHED))
        assert one.wait(job).state == FINISHED
    assert not second.prepared


def waits(one: Bench, launcher: FakeLauncher, job: str) -> bool:
    """Return whether an exec is pending after all turns that are due, and no attempt was prepared."""
    assert one.supervisor.completes_turn(60.0)  # type: ignore[attr-defined]
    return one.row(job).state == PENDING and not launcher.prepared


BOTH_SLOTS: dict[str, Any] = {"framework": "distPyTorch", "num_worker": 2}


@pytest.mark.parametrize("trouble", ["blind", "stuck"])
@pytest.mark.parametrize(("found", "state"), [(ended(FINISHED), FINISHED), (LostRun("its node is gone"), ERROR)])
def test_a_slot_is_not_free_before_the_end_of_its_attempt_is_certain(
    tmp_path: Path, trouble: str, found: Outcome | LostRun, state: str
) -> None:
    with bench_on(tmp_path, first := FakeLauncher()) as one:
        job = running(one, first)
    second = FakeLauncher(found)
    setattr(second, trouble, 1000)
    with bench_on(tmp_path, second) as one:
        other = one.submit("", **BOTH_SLOTS)
        eventually(lambda: one.row(other).state == PENDING, "it waits")
        assert waits(one, second, other)
        assert (one.row(job).state, one.row(job).slots) == (RUNNING, '["cpu-0"]')
        setattr(second, trouble, 0)
        assert one.wait(job).state == state
        second.run().begin()
        one.wait_running(other)


def test_an_attempt_with_an_unknown_fate_is_stopped_once_it_is_adopted(tmp_path: Path) -> None:
    with bench_on(tmp_path, first := FakeLauncher()) as one:
        job = running(one, first)
    second = FakeLauncher(run := FakeRun())
    run.begun, second.blind = True, 1000
    with bench_on(tmp_path, second) as one:
        one.stop(job)
        assert one.supervisor.completes_turn(60.0)  # type: ignore[attr-defined]
        assert one.row(job).state == RUNNING
        second.blind = 0
        eventually(lambda: run.stopped, "the adopted run is asked to end")
        run.end(ended(KILLED))
        assert one.wait(job).state == KILLED


def test_slots_are_kept_while_a_process_of_an_ended_attempt_lives(tmp_path: Path) -> None:
    with bench_on(tmp_path, launcher := FakeLauncher()) as one:
        job = running(one, launcher)
        other = one.submit("", **BOTH_SLOTS)
        launcher.stuck = 1000
        launcher.run().end(ended(FINISHED))
        eventually(lambda: launcher.swept, "the server sweeps the attempt")
        assert one.supervisor.completes_turn(60.0)  # type: ignore[attr-defined]
        assert len(launcher.prepared) == 1 and one.row(job).slots == '["cpu-0"]'
        launcher.stuck = 0
        assert one.wait(job).state == FINISHED
        launcher.run(1).begin()
        one.wait_running(other)


def with_one_slot() -> tuple[FakeLauncher, FakeRun]:
    """Return a launcher of a machine with 1 slot, and the run that it finds there."""
    launcher = FakeLauncher(run := FakeRun())
    launcher.machine, run.begun = Machine(cpu_slots(1)), True
    return launcher, run


def test_a_job_keeps_a_slot_that_the_machine_no_longer_has(tmp_path: Path) -> None:
    with bench_on(tmp_path, first := FakeLauncher()) as one:
        job = one.submit("", **BOTH_SLOTS)
        first.run().begin()
        one.wait_running(job)
    second, run = with_one_slot()
    with bench_on(tmp_path, second) as one:
        held = one.database.read(lambda c: holdings.held(c, job))
        assert held == {"cpu-0": "cpu", "cpu-1": "cpu"} and one.row(job).slots == '["cpu-0", "cpu-1"]'
        assert "cpu-1" in one.launcher_log(job)
        run.end(ended(FINISHED))
        assert one.wait(job).state == FINISHED


def test_an_elastic_job_leaves_a_slot_that_the_machine_no_longer_has(tmp_path: Path) -> None:
    with bench_on(tmp_path, first := FakeLauncher()) as one:
        job = one.submit("", **ELASTIC)
        first.run().begin()
        one.wait_running(job)
    second, run = with_one_slot()
    run.held = Held(0, ("cpu-0", "cpu-1"), ("cpu-0", "cpu-1"))
    with bench_on(tmp_path, second) as one:
        (allocation,) = eventually(lambda: run.allocations, "the job gets other slots")
        assert allocation == Allocation(cpu_slots(1), 1) and one.row(job).slots == '["cpu-0", "cpu-1"]'
        with pytest.raises(ResizeError):
            one.supervisor.resize(job, 2)  # type: ignore[attr-defined]
        run.held = Held(1, ("cpu-0",), ("cpu-0",))
        one.wake()
        eventually(lambda: one.row(job).slots == '["cpu-0"]', "the other slot is released")
        run.end(ended(FINISHED))
        one.wait(job)


class Babbler(FakeRun):
    """A run that sends messages without end, but never its slots."""

    def on_ready(self, ready: Collection[int]) -> bool:
        return False


def test_messages_without_end_do_not_delay_the_start_of_a_server(tmp_path: Path) -> None:
    with bench_on(tmp_path, first := FakeLauncher()) as one:
        job = running(one, first)
    second = FakeLauncher(run := Babbler())
    run.begun = True
    run.begin()
    with bench_on(tmp_path, second) as one:
        assert one.row(job).state == RUNNING
