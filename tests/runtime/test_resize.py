"""Resizing a running elastic job. A slot goes to another job only when no process of the first job uses it."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from puppets import Driver, Strings, strings
from runtime_support import Bench, Host, gone, host_bench
from support import eventually

from dlicmd.contract.states import FINISHED, KILLED, PENDING, RUNNING
from local_backend.runtime import unix_socket
from local_backend.runtime.launcher import Held
from local_backend.runtime.messages import Progressed
from local_backend.runtime.resizing import Resized, ResizeError, choose
from local_backend.scheduler.model import CPU, Slot
from local_backend.scheduler.slots import cpu_slots
from local_backend.store import execs
from local_backend.store.holdings import SlotPart

SLEEP = "import time\ntime.sleep(600)\n"
#: Prints whether the process with the given pid was still alive when this program started.
WITNESS = "import os, sys\nprint(os.path.exists(f'/proc/{sys.argv[1]}'))\n"


@pytest.fixture
def held() -> Iterator[Strings]:
    with strings() as found:
        yield found


def resize(one: Bench, job: str, count: int) -> Resized:
    """Change the number of slots of a job as soon as it runs."""
    one.wait_running(job)
    found: Resized = one.supervisor.resize(job, count)  # type: ignore[attr-defined]
    return found


def refusal(one: Bench, job: str, count: int) -> str:
    """Return the reason why a resize of a job is refused."""
    with pytest.raises(ResizeError) as refused:
        one.supervisor.resize(job, count)  # type: ignore[attr-defined]
    return str(refused.value)


def slots_of(one: Bench, job: str) -> list[str]:
    """Return the slots that the row of a job lists."""
    return json.loads(one.row(job).slots or "[]")


def test_a_running_job_gets_its_new_slots(backend: Bench, held: Strings) -> None:
    job = held.submit(backend)
    driver = held.driver()
    assert driver.hello() == ["cpu-0", "cpu-1"]
    assert resize(backend, job, 1) == Resized(2, 1)
    assert driver.allocation() == ["cpu-0"]
    eventually(lambda: slots_of(backend, job) == ["cpu-0"], "cpu-1 is free")
    assert resize(backend, job, 2) == Resized(1, 2)
    assert driver.allocation() == slots_of(backend, job) == ["cpu-0", "cpu-1"]
    assert resize(backend, job, 2) == Resized(2, 2)
    driver.close()
    assert backend.wait(job).state == FINISHED
    assert "resized from 2 to 1 slots" in backend.launcher_log(job)


def test_a_driver_that_says_hello_late_gets_only_the_newest_slots(backend: Bench, held: Strings) -> None:
    job = held.submit(backend)
    driver = held.driver()
    backend.wait_running(job)
    resize(backend, job, 1)
    eventually(lambda: slots_of(backend, job) == ["cpu-0"], "the job holds only cpu-0")
    assert driver.hello() == ["cpu-0"]
    driver.close()
    backend.wait(job)


def test_a_slot_goes_to_another_job_when_its_worker_is_gone(backend: Bench, held: Strings) -> None:
    job = held.submit(backend)
    driver = held.driver()
    driver.hello()
    driver.spawn(1, "cpu-0")
    driver.spawn(2, "cpu-1")
    workers = {worker.number: worker for worker in (held.worker(), held.worker())}
    other = backend.submit(WITNESS, arguments=(str(workers[2].pid),))
    resize(backend, job, 1)
    assert driver.allocation() == ["cpu-0"]
    eventually(lambda: (found := backend.held(job)) and found.sequence == 1, "the runner reports the slots it holds")
    assert backend.held(job) == Held(1, ("cpu-0",), ("cpu-0", "cpu-1"), workers=(1, 2))
    assert slots_of(backend, job) == ["cpu-0", "cpu-1"]
    assert backend.row(other).state == PENDING
    workers[2].close()
    assert backend.wait(other).state == FINISHED
    assert backend.output(other) == "False\n"
    assert slots_of(backend, job) == ["cpu-0"]
    assert not gone(workers[1].pid)
    driver.close()
    backend.wait(job)


def test_processes_left_by_a_worker_are_killed_before_its_slot_is_free(backend: Bench, held: Strings) -> None:
    job = held.submit(backend)
    driver = held.driver()
    driver.hello()
    driver.spawn(1, "cpu-0")
    driver.spawn(7, "cpu-1")
    workers = {worker.number: worker for worker in (held.worker(), held.worker())}
    daemons = {number: worker.daemon() for number, worker in workers.items()}
    resize(backend, job, 1)
    driver.allocation()
    os.kill(workers[7].pid, signal.SIGKILL)
    assert (event := driver.hear())["event"] == "exited" and event["worker"] == 7
    eventually(lambda: slots_of(backend, job) == ["cpu-0"], "the slot of the worker is free")
    assert gone(daemons[7])
    assert not gone(daemons[1]), "a daemon of another worker was killed"
    driver.close()
    assert backend.wait(job).state == FINISHED
    assert gone(daemons[1])


def test_a_worker_does_not_start_on_a_reclaimed_slot(backend: Bench, held: Strings) -> None:
    job = held.submit(backend)
    driver = held.driver()
    driver.hello()
    resize(backend, job, 1)
    driver.allocation()
    driver.spawn(5, "cpu-1")
    assert driver.hear() == {
        "event": "exited", "worker": 5, "pid": None, "exit_code": None, "signal": None,
        "reason": "slot 'cpu-1' is not in the allocation",
    }
    driver.spawn(5, "cpu-0")
    worker = held.worker()
    assert worker.number == 5
    driver.spawn(5, "cpu-0")
    assert "already running" in driver.hear()["reason"]
    driver.close()
    backend.wait(job)


def test_a_parked_job_gets_slots_again(backend: Bench, held: Strings) -> None:
    job = held.submit(backend)
    driver = held.driver()
    driver.hello()
    assert resize(backend, job, 0) == Resized(2, 0)
    assert driver.allocation() == []
    other = backend.submit(SLEEP)
    backend.wait_running(other)
    expected = f"Exec {job} cannot have 2 slots: it has 0, and 1 more CPU slot is free; {other} holds 1"
    assert refusal(backend, job, 2) == expected
    assert resize(backend, job, 1) == Resized(0, 1)
    assert driver.allocation() == ["cpu-1"]
    backend.stop(other)
    backend.wait(other)
    assert resize(backend, job, 2) == Resized(1, 2)
    assert driver.allocation() == ["cpu-1", "cpu-0"]
    driver.close()
    assert backend.wait(job).state == FINISHED


def test_slots_that_are_still_held_can_be_given_back(backend: Bench, held: Strings) -> None:
    job = held.submit(backend)
    driver = held.driver()
    driver.hello()
    driver.spawn(1, "cpu-1")
    worker = held.worker()
    waiting = backend.submit(SLEEP)
    resize(backend, job, 1)
    driver.allocation()
    assert resize(backend, job, 2) == Resized(1, 2)
    assert driver.allocation() == ["cpu-0", "cpu-1"]
    worker.close()
    driver.hear()
    eventually(lambda: (found := backend.held(job)) and found.workers == (), "the worker has ended")
    assert slots_of(backend, job) == ["cpu-0", "cpu-1"]
    assert backend.row(waiting).state == PENDING
    backend.stop(waiting)
    backend.wait(waiting)
    driver.close()
    backend.wait(job)


def test_a_resize_is_refused_with_a_reason(backend: Bench, held: Strings) -> None:
    fixed = backend.submit(SLEEP, framework="distPyTorch", num_worker=2)
    backend.wait_running(fixed)
    waiting = held.submit(backend)
    eventually(lambda: backend.row(waiting).state == PENDING, "the job is pending")
    for job, named in ((fixed, "distPyTorch"), (waiting, PENDING), ("local-99", "not found")):
        assert job in (said := refusal(backend, job, 1)) and named in said
    backend.stop(fixed)
    driver = held.driver()
    backend.wait_running(waiting)
    assert "at most 4" in refusal(backend, waiting, 5)
    slots = ("cpu-0", "cpu-1")
    eventually(lambda: backend.held(waiting) == Held(0, slots, slots), "the runner has reported the slots it holds")
    driver.close()
    backend.wait(waiting)
    assert FINISHED in refusal(backend, waiting, 1)


def test_a_parked_job_can_be_stopped(backend: Bench, held: Strings) -> None:
    job = held.submit(backend)
    driver = held.driver()
    driver.hello()
    resize(backend, job, 0)
    driver.allocation()
    backend.stop(job)
    assert backend.wait(job).state == KILLED
    assert not backend.leftovers(job)


# --- the server is killed


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Host, Bench]]:
    with host_bench(tmp_path) as both:
        yield both


@pytest.mark.integration
def test_a_new_server_does_not_assign_a_slot_while_a_worker_runs_on_it(
    pair: tuple[Host, Bench], held: Strings
) -> None:
    host, one = pair
    job = held.submit(one)
    driver = held.driver()
    driver.hello()
    driver.spawn(1, "cpu-1")
    worker = held.worker()
    other = one.submit(WITNESS, arguments=(str(worker.pid),))
    one.wait_running(job)
    host.resize(job, 1)
    assert driver.allocation() == ["cpu-0"]
    host.restart()
    eventually(lambda: one.launcher_log(job).count("adopted") == 1, "the server adopts the job")
    assert slots_of(one, job) == ["cpu-0", "cpu-1"]
    worker.close()
    assert driver.hear()["event"] == "exited"
    assert one.wait(other).state == FINISHED
    assert one.output(other) == "False\n"
    host.resize(job, 2)
    assert driver.allocation() == ["cpu-0", "cpu-1"]
    driver.close()
    assert one.wait(job).state == FINISHED


@pytest.mark.integration
def test_slots_that_became_free_without_a_server_are_assigned_again(pair: tuple[Host, Bench], held: Strings) -> None:
    host, one = pair
    job = held.submit(one)
    driver = held.driver()
    driver.hello()
    driver.spawn(1, "cpu-1")
    worker = held.worker()
    one.wait_running(job)
    host.resize(job, 1)
    driver.allocation()
    host.kill()
    worker.close()
    driver.hear()
    eventually(lambda: Held(1, ("cpu-0",), ("cpu-0",)) in one.ask(job), "the runner gives back cpu-1")
    assert slots_of(one, job) == ["cpu-0", "cpu-1"]
    host.start()
    eventually(lambda: slots_of(one, job) == ["cpu-0"], "the next server frees cpu-1")
    driver.close()
    one.wait(job)


def test_an_allocation_that_the_runner_did_not_get_is_decided_again(
    pair: tuple[Host, Bench], held: Strings
) -> None:
    """The server dies after it writes the row and before it sends the message, so the row has more slots."""
    host, one = pair
    job = held.submit(one, num_worker=1)
    driver = held.driver()
    assert driver.hello() == ["cpu-0"]
    one.wait_running(job)
    host.kill()
    parts = [SlotPart(slot.id, slot.kind) for slot in cpu_slots(2)]
    one.database.write(lambda c: (execs.note(c, job, pinned=0), execs.hold(c, job, parts, "/local/training")))
    host.start()
    assert driver.allocation() == []
    eventually(lambda: slots_of(one, job) == [], "both slots are free")
    driver.close()
    assert one.wait(job).state == FINISHED


def test_a_runner_reports_its_whole_state_to_the_next_server(
    pair: tuple[Host, Bench], held: Strings
) -> None:
    host, one = pair
    job = held.submit(one)
    driver = held.driver()
    driver.hello()
    driver.spawn(1, "cpu-1")
    worker = held.worker()
    one.wait_running(job)
    host.resize(job, 1)
    driver.allocation()
    host.kill()
    driver.say(op="progress", step=7, usable=3, recovering=True)
    state = Held(1, ("cpu-0",), ("cpu-0", "cpu-1"), (1,), recovering=True, usable=3)
    progressed = Progressed({"workers": 1, "step": 7})
    eventually(lambda: state in (said := one.ask(job)) and progressed in said, "the runner reports state and progress")
    worker.close()
    assert driver.hear()["event"] == "exited"
    driver.close()
    assert not one.row(job).terminal
    host.start()
    assert json.loads(one.wait(job).progress or "") == {"workers": 0, "step": 7}, "exit.json must have the progress"


@pytest.mark.integration
@pytest.mark.parametrize("deed", ["unlink", "folder", "file", "listener"])
def test_a_program_that_removes_the_socket_does_not_keep_its_slots(
    pair: tuple[Host, Bench], held: Strings, deed: str
) -> None:
    host, one = pair
    job = held.submit(one)
    driver = held.driver()
    assert driver.hello() == ["cpu-0", "cpu-1"]
    one.wait_running(job)
    place = one.paths(job).socket
    before = place.lstat().st_ctime_ns
    place.unlink()
    if deed == "folder":
        place.mkdir()
        (place / "x").touch()
    elif deed == "file":
        place.touch()
    elif deed == "listener":
        os.close(unix_socket.listen(place))
    host.resize(job, 1)
    assert driver.allocation() == ["cpu-0"], "the first server must stay connected without the file"
    host.kill()
    eventually(lambda: place.is_socket() and place.lstat().st_ctime_ns != before, "the runner makes the socket again")
    host.start()
    host.resize(job, 2)
    assert driver.allocation() == ["cpu-0", "cpu-1"]
    driver.close()
    assert one.wait(job).state == FINISHED
    assert not place.exists()


@pytest.mark.integration
def test_another_server_replaces_the_first_and_the_first_reconnects(
    pair: tuple[Host, Bench], held: Strings
) -> None:
    """After that, messages of the first server that the runner has not read are ignored."""
    host, one = pair
    job = held.submit(one)
    driver = held.driver()
    driver.hello()
    one.wait_running(job)
    for count in (1, 2, 1):
        one.ask(job)
        eventually(lambda c=count: _resized(host, driver, job, c), "the server is connected again")
    driver.close()
    assert one.wait(job).state == FINISHED


def _resized(host: Host, driver: Driver, job: str, count: int) -> bool:
    host.resize(job, count)
    host.waits_for(job)
    return driver.has_message() and driver.allocation() == ["cpu-0", "cpu-1"][:count]


@pytest.mark.integration
def test_slots_that_were_noted_but_never_allocated_are_free_again(pair: tuple[Host, Bench], held: Strings) -> None:
    """The server dies after it writes the row and before it sends the allocation."""
    host, one = pair
    job = held.submit(one, num_worker=1)
    driver = held.driver()
    assert driver.hello() == ["cpu-0"]
    one.wait_running(job)
    host.kill()
    parts = [SlotPart(slot.id, slot.kind) for slot in cpu_slots(2)]
    one.database.write(lambda c: execs.hold(c, job, parts, "/local/training"))
    host.start()
    eventually(lambda: slots_of(one, job) == ["cpu-0"], "the row has the slots that the runner holds")
    other = one.submit("print(1)")
    assert one.wait(other).state == FINISHED
    assert one.row(job).state == RUNNING
    driver.close()
    one.wait(job)


class Brain:
    """A driver that keeps one worker with a daemon on every slot of its job and on no other slot."""

    def __init__(self, held: Strings, job: str, folder: Path) -> None:
        self._held, self._job, self._folder = held, job, folder
        self._driver = held.driver()
        self._numbers = itertools.count(1)
        self._on: dict[str, int] = {}
        self.trespasses: list[str] = []
        self.started = 0
        self.slots: list[str] = []

    def begin(self) -> None:
        """Start to follow the allocation."""
        self._driver.say(op="hello")
        for work in (self._listen, self._attend):
            threading.Thread(target=work, daemon=True).start()

    def _listen(self) -> None:
        while (message := self._driver.hear_or_end()) is not None:
            if message["event"] == "allocation":
                self._follow([slot["id"] for slot in message["slots"]])

    def _follow(self, slots: list[str]) -> None:
        for slot in [slot for slot in self._on if slot not in slots]:
            self._driver.say(op="kill", worker=self._on.pop(slot))
        for slot in [slot for slot in slots if slot not in self._on]:
            self._on[slot] = next(self._numbers)
            self._driver.spawn(self._on[slot], slot, f"{self._job}@{self._folder / slot}")
        self.slots = slots

    def _attend(self) -> None:
        workers = []
        with suppress(OSError):  # The connection is closed at the end of the test.
            while True:
                with suppress(AssertionError, ConnectionError):  # The worker was killed while it introduced itself.
                    worker = self._held.worker()
                    self.started += 1
                    if worker.trespass:
                        self.trespasses.append(f"worker {worker.number}: {worker.trespass}")
                    workers.append(worker)
                    worker.daemon()


@pytest.mark.integration
@pytest.mark.parametrize(
    "turns", [20, pytest.param(600, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_a_slot_never_has_two_jobs_while_servers_and_workers_are_killed(tmp_path: Path, turns: int) -> None:
    chance = random.Random(11)
    (tmp_path / "slots").mkdir()
    with host_bench(tmp_path / "home", slots=4) as (host, one), strings() as first, strings() as second:
        jobs, brains = [], []
        for ends in (first, second):
            job = ends.submit(one)
            jobs.append(job)
            brains.append(Brain(ends, job, tmp_path / "slots"))
            one.wait_running(job)
            host.resize(job, 1)
            eventually(lambda: len(slots_of(one, jobs[-1])) == 1, "a slot is free for the other job")
            brains[-1].begin()
        for _ in range(turns):
            threading.Event().wait(chance.random() * 0.1)  # The time of the next action is what varies in this test.
            if chance.random() < 0.25:
                host.restart()
            else:
                host.resize(chance.choice(jobs), chance.randrange(4))
        for job in jobs:
            host.resize(job, 0)
        for job, brain in zip(jobs, brains, strict=True):
            eventually(lambda j=job: slots_of(one, j) == [], f"{job} gives everything back")
            assert brain.trespasses == []
            eventually(lambda b=brain: b.slots == [], "the driver knows that the job has no slot")
            assert brain.started > 0
            one.stop(job)
            assert one.wait(job).state == KILLED
            assert not one.leftovers(job)


# --- pure functions


@given(st.integers(0, 6), st.integers(0, 6), st.integers(0, 14))
def test_a_resized_job_keeps_its_first_slots_and_takes_free_ones(has: int, free: int, count: int) -> None:
    mine, others = cpu_slots(has), tuple(Slot(f"free-{n}", CPU) for n in range(free))
    chosen = choose(mine, others, count)
    if count > has + free:
        assert chosen is None
    else:
        assert chosen == (mine + others[: max(0, count - has)])[:count]
