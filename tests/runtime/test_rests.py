"""Jobs that rest after an epoch: their slots, their processes, and what happens when any process dies meanwhile.

The driver is controlled by the test (puppets.py); test_rests_of_trainings.py has real trainings.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from puppets import Driver, Strings, strings
from runtime_support import Bench, bench, gone, host_bench, runner_of
from sqlalchemy import Connection
from support import eventually

from dlicmd.contract.states import FINISHED, KILLED, PENDING, RUNNING
from local_backend.runtime import control
from local_backend.runtime.launch import read_restarts
from local_backend.runtime.resizing import ResizeError
from local_backend.store import execs, searches
from local_backend.store.searches import ExperimentRow, SearchRow

SLEEP = "import time\ntime.sleep(600)\n"


@pytest.fixture
def held() -> Iterator[Strings]:
    with strings() as found:
        yield found


@pytest.fixture
def none_kept(tmp_path: Path) -> Iterator[Bench]:
    """A backend in which no resting job keeps its processes."""
    with bench(tmp_path, rested_kept=0) as one:
        yield one


def rest(one: Bench, job: str, driver: Driver, epochs: int = 1, stored: bool = True) -> None:
    """Let the driver rest, and wait until the job has given up its slots."""
    driver.say(op="rested", epochs=epochs, stored=stored)
    one.wait_rested(job, epochs)


def told(one: Bench, job: str, kind: str) -> list[dict]:
    return [dict(event.data) for event in one.stream(job) if event.kind == kind]


def test_a_job_that_rests_gives_its_slots_away_until_it_is_promoted(backend: Bench, held: Strings) -> None:
    job = held.submit(backend, rest_after=1)
    driver = held.driver()
    driver.say(op="hello")
    assert driver.hear()["rest"] == 1
    other = backend.submit(SLEEP, num_worker=2)
    rest(backend, job, driver)
    assert told(backend, job, "rested") == [{"epoch": 1}]
    assert driver.hear()["slots"] == []
    backend.wait_running(other)
    assert backend.row(job).state == RUNNING
    with pytest.raises(ResizeError):
        backend.supervisor.resize(job, 1)  # type: ignore[attr-defined]
    backend.promote(job, 3)
    message = driver.hear()
    assert (message["rest"], message["slots"]) == (3, [])  # the other job has all slots
    assert backend.row(job).rested is None
    backend.stop(other)
    assert len(driver.allocation()) == 2
    rest(backend, job, driver, 3)
    assert [event["epoch"] for event in told(backend, job, "rested")] == [1, 3]
    backend.promote(job)
    eventually(lambda: driver.hear()["rest"] is None, "the driver trains to the end")
    driver.close()
    assert backend.wait(job).state == FINISHED


def experiment_of(one: Bench, job: str, state: str = searches.RUNNING) -> None:
    """Make a search of which a job is the experiment 0."""
    row = SearchRow(
        number=1, id="search-1", creator="ada", name="s", definition="", workload="", args="", data_source=None,
        sealed=None, targets=None, bundle="", seed=1, state=state, ending=None, attempt=1, create_time=0.0,
        begin_time=0.0, end_time=0.0, used=0.0, message=None)

    def write(connection: Connection) -> None:
        searches.create(connection, row, None)
        searches.add(connection, [ExperimentRow(1, 0, "{}", searches.RUNNING, exec_id=job)])

    one.database.write(write)


def test_an_experiment_keeps_its_slots_until_its_search_has_decided(
    backend: Bench, held: Strings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "_DECISION", 600.0)
    job = held.submit(backend, rest_after=1, parent="search-1")
    experiment_of(backend, job)
    driver = held.driver()
    driver.hello()
    driver.say(op="rested", epochs=1, stored=False)
    eventually(lambda: backend.row(job).rested == 1, "it rests")
    backend.promote(job, 3)
    message = driver.hear()
    assert (message["rest"], len(message["slots"])) == (3, 2)
    driver.say(op="rested", epochs=3, stored=False)
    eventually(lambda: backend.row(job).rested == 3, "it rests again")
    assert told(backend, job, "resize") == []
    backend.database.write(lambda c: searches.change(c, 1, 0, state=searches.WAITING))
    backend.wake()
    assert driver.hear()["slots"] == []
    backend.wait_rested(job, 3)


def test_an_experiment_does_not_keep_its_slots_for_a_search_that_does_not_decide(
    backend: Bench, held: Strings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "_DECISION", 0.0)
    job = held.submit(backend, rest_after=1, parent="search-1")
    experiment_of(backend, job)
    driver = held.driver()
    driver.hello()
    rest(backend, job, driver)
    assert driver.hear()["slots"] == []


def test_slots_of_a_resting_job_are_free_when_its_workers_have_ended(backend: Bench, held: Strings) -> None:
    job = held.submit(backend, rest_after=1)
    driver = held.driver()
    driver.hello()
    driver.spawn(1, "cpu-0")
    worker = held.worker()
    driver.say(op="rested", epochs=1, stored=True)
    assert driver.hear()["slots"] == []
    eventually(lambda: backend.row(job).slots == '["cpu-0"]', "cpu-1 is free")
    backend.wait_running(backend.submit(SLEEP))  # decisions meanwhile give the resting job nothing
    other = backend.submit(SLEEP)
    worker.close()
    backend.wait_rested(job, 1)
    backend.wait_running(other)
    assert told(backend, job, "resize") == [{"before": 2, "slots": 1}, {"before": 1, "slots": 0}]


def test_a_runner_begins_with_the_rest_of_its_order(backend: Bench, held: Strings) -> None:
    job = held.submit(backend, rest_after=1)
    driver = held.driver()
    driver.hello()
    backend.wait_running(job)
    driver.say(op="progress", step=1)
    eventually(lambda: backend.told(job, "step") == 1, "the server has heard the runner")
    found = backend.held(job)
    assert found is not None and (found.sequence, found.rest) == (0, 1)  # the server has nothing to correct
    backend.promote(job)
    assert driver.hear()["rest"] is None
    driver.close()
    assert backend.wait(job).state == FINISHED


def test_a_job_that_is_promoted_while_it_begins_to_rest_does_not_rest(backend: Bench, held: Strings) -> None:
    job = held.submit(backend, rest_after=1)
    driver = held.driver()
    driver.hello()
    backend.promote(job, 2)
    assert driver.hear()["rest"] == 2
    driver.say(op="rested", epochs=1, stored=True)
    driver.say(op="progress", step=7)
    eventually(lambda: backend.told(job, "step") == 7, "the runner has read both messages")
    found = backend.held(job)
    assert (found.rest, found.rested) == (2, None) and len(found.slots) == 2
    driver.close()
    assert backend.wait(job).state == FINISHED
    assert told(backend, job, "rested") == [] and backend.row(job).rested is None


def test_the_server_ignores_a_rest_that_a_promotion_has_overtaken(backend: Bench, held: Strings) -> None:
    job = held.submit(backend, rest_after=1)
    driver = held.driver()
    driver.hello()
    backend.database.write(lambda c: execs.promote(c, job, None))  # the supervisor does not know it yet
    driver.say(op="rested", epochs=1, stored=True)
    assert driver.hear()["rest"] is None
    assert backend.row(job).rested is None and len(json.loads(backend.row(job).slots or "[]")) == 2
    driver.close()
    assert backend.wait(job).state == FINISHED


def test_a_resting_job_can_be_stopped(backend: Bench, held: Strings) -> None:
    job = held.submit(backend, rest_after=1)
    driver = held.driver()
    driver.hello()
    rest(backend, job, driver)
    backend.stop(job)
    assert backend.wait(job).state == KILLED


def test_beyond_a_number_resting_jobs_end_their_processes_and_start_again(none_kept: Bench, held: Strings) -> None:
    job = held.submit(none_kept, rest_after=1)
    driver = held.driver()
    driver.hello()
    pids = [driver.pid, runner_of(none_kept, job)]
    snapshot = none_kept.paths(job).checkpoint / "elastic" / "train-1"
    snapshot.mkdir(parents=True)
    rest(none_kept, job, driver)
    row = eventually(lambda: (row := none_kept.row(job)).state == PENDING and row, "its processes have ended")
    eventually(lambda: all(map(gone, pids)), "they are gone")
    assert (row.slots, row.rested, row.attempt) == (None, 1, 1) and snapshot.is_dir()
    assert none_kept.waits_for(job) is None and not none_kept.supervisor.status()["queued"]
    none_kept.promote(job, 3)
    driver = held.driver()
    driver.say(op="hello")
    message = driver.hear()
    assert (message["rest"], len(message["slots"])) == (3, 2)
    assert none_kept.row(job).attempt == 2 and read_restarts(none_kept.paths(job)).fruitless == 0
    assert "RECOVERING" not in none_kept.history(job)
    none_kept.promote(job)
    eventually(lambda: driver.hear()["rest"] is None, "the driver trains to the end")
    driver.close()
    assert none_kept.wait(job).state == FINISHED and not snapshot.exists()


def test_a_resting_job_without_processes_can_be_stopped(none_kept: Bench, held: Strings) -> None:
    job = held.submit(none_kept, rest_after=1)
    driver = held.driver()
    driver.hello()
    rest(none_kept, job, driver)
    eventually(lambda: none_kept.row(job).state == PENDING, "its processes have ended")
    none_kept.stop(job)
    assert none_kept.wait(job).state == KILLED


def test_a_job_whose_state_is_only_in_memory_keeps_its_processes(none_kept: Bench, held: Strings) -> None:
    job = held.submit(none_kept, rest_after=1)
    driver = held.driver()
    driver.hello()
    rest(none_kept, job, driver, stored=False)
    assert driver.hear()["slots"] == []
    none_kept.promote(job, 2)
    assert len(driver.allocation()) == 2
    rest(none_kept, job, driver, 2)
    eventually(lambda: none_kept.row(job).state == PENDING, "its processes have ended")


def test_the_jobs_that_have_rested_longest_end_their_processes(tmp_path: Path, held: Strings) -> None:
    with bench(tmp_path, slots=3, rested_kept=1) as one:
        drivers = {}
        for _ in range(3):
            job = held.submit(one, rest_after=1, num_worker=1)
            drivers[job] = held.driver()
            drivers[job].hello()
        for job, driver in drivers.items():
            rest(one, job, driver)
        first, second, third = drivers
        eventually(lambda: one.row(first).state == one.row(second).state == PENDING, "two end their processes")
        assert one.row(third).state == RUNNING


def test_the_resting_jobs_of_a_stopped_search_end_their_processes_and_can_go_on(
    backend: Bench, held: Strings
) -> None:
    job = held.submit(backend, rest_after=1, parent="search-1")
    driver = held.driver()
    driver.hello()
    rest(backend, job, driver)
    assert backend.row(job).state == RUNNING
    experiment_of(backend, job, searches.STOPPED)
    backend.wake()
    eventually(lambda: backend.row(job).state == PENDING, "its processes end")
    assert backend.row(job).rested == 1
    backend.promote(job)
    driver = held.driver()  # a driver that nothing refers to ends its job
    driver.hello()
    backend.wait_running(job)


def test_a_runner_that_is_killed_while_its_job_rests_costs_no_restart(backend: Bench, held: Strings) -> None:
    job = held.submit(backend, rest_after=1)
    driver = held.driver()
    driver.hello()
    rest(backend, job, driver)
    os.kill(runner_of(backend, job), signal.SIGKILL)
    eventually(lambda: backend.row(job).state == PENDING, "it waits without processes")
    assert backend.row(job).rested == 1 and read_restarts(backend.paths(job)).fruitless == 0
    backend.promote(job)
    driver = held.driver()
    assert len(driver.hello()) == 2
    driver.close()
    assert backend.wait(job).state == FINISHED


def test_a_driver_that_is_killed_while_its_job_rests_is_restarted_without_slots(backend: Bench, held: Strings) -> None:
    job = held.submit(backend, rest_after=1)
    driver = held.driver()
    driver.hello()
    rest(backend, job, driver)
    driver.kill()
    driver = held.driver()
    assert driver.hello() == [] and backend.row(job).rested == 1
    backend.promote(job)
    eventually(lambda: len(driver.allocation()) == 2, "it has its slots again")
    driver.close()
    assert backend.wait(job).state == FINISHED


@pytest.mark.integration
@pytest.mark.parametrize("kept", [0, 4])
def test_a_rest_and_a_promotion_while_no_server_runs(tmp_path: Path, held: Strings, kept: int) -> None:
    with host_bench(tmp_path, rested_kept=kept) as (host, one):
        job = held.submit(one, rest_after=1)
        driver = held.driver()
        driver.hello()
        one.wait_running(job)
        host.kill()
        driver.say(op="rested", epochs=1, stored=True)
        host.start()
        one.wait_rested(job, 1)
        if not kept:
            eventually(lambda: one.row(job).state == PENDING, "its processes have ended")
        host.kill()
        one.promote(job, 2)
        host.start()
        if not kept:
            driver = held.driver()
            driver.say(op="hello")
        eventually(lambda: (said := driver.hear())["rest"] == 2 and len(said["slots"]) == 2, "it goes on")
        rest(one, job, driver, 2)
        one.stop(job)
        assert one.wait(job).state == KILLED


@pytest.mark.integration
def test_a_job_that_rested_when_the_machine_was_restarted_waits_without_processes(
    tmp_path: Path, held: Strings
) -> None:
    with host_bench(tmp_path) as (host, one):
        job = held.submit(one, rest_after=1)
        driver = held.driver()
        driver.hello()
        rest(one, job, driver)
        host.kill()
        os.kill(runner_of(one, job), signal.SIGKILL)
        record = json.loads(one.paths(job).runner.read_text())
        one.paths(job).runner.write_text(json.dumps(record | {"boot_id": "another"}))
        host.start()
        eventually(lambda: one.row(job).state == PENDING, "it waits")
        assert one.row(job).rested == 1 and read_restarts(one.paths(job)).fruitless == 0
        one.promote(job)
        driver = held.driver()
        assert len(driver.hello()) == 2
        driver.close()
        assert one.wait(job).state == FINISHED
