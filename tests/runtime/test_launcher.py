"""The supervisor with a launcher that starts no processes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
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
from local_backend.scheduler.model import Allocation, Machine
from local_backend.scheduler.slots import cpu_slots


class FakeRun:
    """A run that the test begins and ends."""

    connected = True
    due: float | None = None

    def __init__(self) -> None:
        self.begun = self.ended = self.stopped = False
        self.refused: str | None = None
        self.held: Held | None = None
        self.progress: Mapping[str, Any] = {}
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

    def allocate(self, allocation: Allocation) -> None: ...

    def stop(self) -> None:
        self.stopped = True

    def kill(self) -> None: ...

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
        self.noted: list[str] = []
        self.swept: list[str] = []
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
        return self.found

    def note_reboot(self, paths: ExecPaths) -> None:
        self.noted.append(paths.exec_id)

    def sweep(self, paths: ExecPaths) -> None:
        self.swept.append(paths.exec_id)

    def run(self, number: int = 0) -> FakeRun:
        """The run with this number, when it is there."""
        eventually(lambda: len(self.runs) > number, "the attempt is started")
        return self.runs[number]


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
    assert not launcher.swept, "no process can be left"


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


@pytest.mark.parametrize(("found", "state", "noted", "swept"), [
    (ended(FINISHED), FINISHED, False, False),
    (LostRun("its node is gone"), ERROR, False, True),
    (LostRun("its node is gone", reboots=1), PENDING, True, True),
    (LostRun("its node is gone", reboots=2), ERROR, False, True),
    (None, PENDING, False, False),
])
def test_the_next_server_records_what_its_launcher_found(
    tmp_path: Path, found: Outcome | LostRun | None, state: str, noted: bool, swept: bool
) -> None:
    with bench_on(tmp_path, first := FakeLauncher()) as one:
        job = running(one, first)
    second = FakeLauncher(found)
    second.busy = True  # an exec that is queued again stays pending
    with bench_on(tmp_path, second) as one:
        row = one.row(job)
    assert (row.state, row.attempt, row.slots) == (state, 1, None)
    assert (second.noted, second.swept) == ([job] * noted, [job] * swept)


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
