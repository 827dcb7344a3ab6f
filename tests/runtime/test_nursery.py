"""The nursery is small and single-threaded. It ends when idle, and jobs start without it if it is not available."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
from runtime_support import Bench, bench, gone
from support import eventually

from dlicmd.contract.states import FINISHED, KILLED, RUNNING
from local_backend.runtime import starter

#: Maximum resident bytes of a waiting nursery.
MOST_RESIDENT = 300 * 2**20


def nursery(one: Bench) -> dict[str, object]:
    return one.supervisor.status()["nursery"]  # type: ignore[attr-defined, no-any-return]


def ready_pid(one: Bench) -> int:
    eventually(lambda: nursery(one)["state"] == "ready", "the nursery is ready")
    return int(str(nursery(one)["pid"]))


@pytest.mark.integration
def test_the_nursery_is_small_single_threaded_and_leaves_no_zombie(warm: Bench) -> None:
    process = psutil.Process(ready_pid(warm))
    for one in [warm.submit("print(1)") for _ in range(3)]:
        assert warm.wait(one).state == FINISHED
    assert process.memory_info().rss <= MOST_RESIDENT
    assert process.num_threads() == 1
    eventually(lambda: not process.children(), "the nursery reaps its runners")


def test_programs_are_forked_from_the_nursery(warm: Bench) -> None:
    ready_pid(warm)
    one = warm.submit("import sys\nprint('torch' in sys.modules)\n")
    assert warm.wait(one).state == FINISHED
    assert warm.output(one) == "True\n"


def test_strings_have_the_same_hash_in_forked_and_fresh_processes(warm: Bench) -> None:
    ready_pid(warm)
    jobs = [warm.submit("print(hash('a'))"), warm.submit("print(hash('a'))", variables={"OMP_NUM_THREADS": "1"})]
    assert [warm.wait(one).state for one in jobs] == [FINISHED] * 2
    assert len({warm.output(one) for one in jobs}) == 1


def test_a_forked_process_and_its_children_carry_the_mark(warm: Bench) -> None:
    ready_pid(warm)
    one = warm.submit("import os, time\nos.fork()\nos.setsid()\nopen('started', 'w').write('x')\ntime.sleep(600)\n")
    warm.wait_for_file(one, "started")
    eventually(lambda: len(warm.leftovers(one)) == 3, "the server finds runner, program and child")
    warm.stop(one)
    assert warm.wait(one).state == KILLED
    eventually(lambda: not warm.leftovers(one), "all processes of the job have ended")


@pytest.mark.integration
def test_running_jobs_survive_the_death_of_the_nursery(tmp_path: Path) -> None:
    with bench(tmp_path, forked=False, nursery_idle=600.0) as one:
        first = ready_pid(one)
        running = one.submit("import time\nopen('started', 'w').write('x')\ntime.sleep(600)\n")
        one.wait_for_file(running, "started")
        os.kill(first, signal.SIGKILL)
        job = one.submit("import sys\nprint('torch' in sys.modules)\n")
        assert one.wait(job).state == FINISHED
        eventually(lambda: gone(first), "the nursery is reaped")
        assert one.row(running).state == RUNNING
        one.stop(running)
        one.wait(running)


@pytest.mark.integration
def test_an_idle_nursery_ends_and_the_next_job_still_runs(tmp_path: Path) -> None:
    with bench(tmp_path, nursery_idle=0.2) as one:
        for _ in range(2):
            job = one.submit("import sys\nprint('torch' in sys.modules)\n")
            assert one.wait(job).state == FINISHED
            assert one.output(job) == "True\n", "a nursery forked it"
            eventually(lambda: nursery(one)["state"] == "off", "the nursery ends")


def test_jobs_run_without_a_nursery_that_cannot_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken" / "torch"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('broken')\n")
    monkeypatch.setenv("PYTHONPATH", str(broken.parent))
    with bench(tmp_path / "home", forked=False, nursery_idle=600.0) as one:
        job = one.submit("print('here')")
        assert one.wait(job).state == FINISHED
        assert one.output(job) == "here\n"


@pytest.mark.integration
def test_a_nursery_that_stops_answering_is_killed_and_jobs_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starter, "FORK_PATIENCE", 0.5)
    with bench(tmp_path, nursery_idle=600.0) as one:
        stuck = ready_pid(one)
        os.kill(stuck, signal.SIGSTOP)
        jobs = [one.submit("print('here')") for _ in range(3)]
        for job in jobs:
            assert one.wait(job).state == FINISHED
            assert one.output(job) == "here\n"
        eventually(lambda: gone(stuck), "the nursery is killed and reaped")


@pytest.mark.integration
def test_a_nursery_that_died_several_times_before_it_was_ready_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starter, "FIRST_PAUSE", 0.01)
    with bench(tmp_path, forked=False, nursery_idle=600.0) as one:
        for _ in range(3):
            killed = eventually(lambda: nursery(one).get("pid"), "a nursery starts")
            os.kill(int(str(killed)), signal.SIGKILL)
            eventually(lambda k=killed: nursery(one).get("pid") != k, "the server sees the death")
            assert one.wait(one.submit("print(1)")).state == FINISHED
        ready_pid(one)
        job = one.submit("import sys\nprint('torch' in sys.modules)\n")
        assert one.wait(job).state == FINISHED
        assert one.output(job) == "True\n"


def test_a_nursery_that_never_becomes_ready_is_killed_and_the_job_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = tmp_path / "hanging" / "torch"
    hanging.mkdir(parents=True)
    (hanging / "__init__.py").write_text("import time\ntime.sleep(3600)\n")
    monkeypatch.setenv("PYTHONPATH", str(hanging.parent))
    with bench(tmp_path / "home", forked=False, nursery_idle=600.0) as one:
        stuck = int(str(nursery(one)["pid"]))
        monkeypatch.setattr(starter, "READY_PATIENCE", 1.0)  # not before: it would be gone on a slow machine
        job = one.submit("print('here')")
        assert one.wait(job).state == FINISHED
        assert one.output(job) == "here\n"
        eventually(lambda: gone(stuck), "the nursery is killed and reaped")
