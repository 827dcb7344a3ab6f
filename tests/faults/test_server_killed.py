"""SIGKILL of the server at any moment: no job is lost, and no job starts twice."""

from __future__ import annotations

import os
import random
import signal
import textwrap
import threading
from pathlib import Path

import pytest
from runtime_support import Bench, gone, host_bench, runner_of
from support import eventually

from dlicmd.contract import wire
from dlicmd.contract.states import ERROR, FINISHED, KILLED, PENDING, RUNNING, SUBMITTED

pytestmark = pytest.mark.integration

#: Records every start of the program in a file in its code folder, then does a little work.
COUNTED = """
import os, time
with open("starts", "a") as file:
    file.write("x")
for number in range(5):
    print(number)
    time.sleep(0.02)
"""
UNTIL_TOLD = """
import os, time
with open("starts", "a") as file:
    file.write("x")
while not os.path.exists("go"):
    time.sleep(0.01)
print("done")
"""


def code_of(one: Bench, exec_id: str) -> Path:
    return one.paths(exec_id).code(one.row(exec_id).workload)


def test_a_running_job_is_adopted_and_its_result_is_complete(tmp_path: Path) -> None:
    with host_bench(tmp_path) as (host, one):
        job = one.submit(UNTIL_TOLD)
        one.wait_for_file(job, "starts")
        runner = runner_of(one, job)
        host.kill()
        assert not gone(runner)
        host.start()
        assert one.row(job).state == RUNNING
        (code_of(one, job) / "go").touch()
        assert one.wait(job).state == FINISHED
        assert one.history(job) == [SUBMITTED, PENDING, RUNNING, FINISHED]
        assert one.output(job) == "done\n"
        assert (code_of(one, job) / "starts").read_text() == "x"


def test_a_job_that_ended_without_a_server_is_taken_over(tmp_path: Path) -> None:
    with host_bench(tmp_path) as (host, one):
        job = one.submit(UNTIL_TOLD + "raise ValueError('late')\n")
        one.wait_for_file(job, "starts")
        one.wait_running(job)
        host.kill()
        (code_of(one, job) / "go").touch()
        eventually(one.paths(job).exit.exists, "the runner writes exit.json")
        assert one.row(job).state == RUNNING
        host.start()
        row = one.wait(job)
        assert (row.state, row.message, row.exit_code) == (ERROR, "ValueError: late", 1)
        assert one.history(job) == [SUBMITTED, PENDING, RUNNING, ERROR]


def test_a_stop_requested_without_a_server_is_carried_out(tmp_path: Path) -> None:
    with host_bench(tmp_path) as (host, one):
        job = one.submit(UNTIL_TOLD)
        one.wait_for_file(job, "starts")
        host.kill()
        one.stop(job)
        host.start()
        assert one.wait(job).state == KILLED
        assert not one.leftovers(job)


@pytest.mark.parametrize(
    ("kills", "jobs_between"), [(6, 2), pytest.param(500, 1, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_no_job_is_lost_or_started_twice_in_repeated_kills(
    tmp_path: Path, kills: int, jobs_between: int
) -> None:
    chance = random.Random(7)
    with host_bench(tmp_path) as (host, one):
        jobs = []
        for _ in range(kills):
            jobs += [one.submit(COUNTED) for _ in range(jobs_between)]
            threading.Event().wait(chance.random() * 0.25)  # The time of the kill is what varies in this test.
            host.restart()
        rows = {job: one.wait(job) for job in jobs}
        assert {row.state for row in rows.values()} == {FINISHED}
        for job in jobs:
            assert (code_of(one, job) / "starts").read_text() == "x"
            assert one.output(job).split() == list("01234")
            # An attempt may be counted and called off before it ran. It never ran twice.
            assert one.history(job)[0] == SUBMITTED
            assert one.history(job)[-2:] == [RUNNING, FINISHED]


def test_no_job_with_a_nursery_is_lost_or_started_twice(tmp_path: Path) -> None:
    with host_bench(tmp_path, nursery_idle=600.0) as (host, one):
        jobs = []
        for pause in (0.0, 0.05, 2.5):
            jobs += [one.submit(COUNTED)]
            threading.Event().wait(pause)
            host.restart()
        assert {one.wait(job).state for job in jobs} == {FINISHED}
        assert [(code_of(one, job) / "starts").read_text() for job in jobs] == ["x"] * 3


def test_a_suspended_server_continues(tmp_path: Path) -> None:
    with host_bench(tmp_path) as (host, one):
        job = one.submit(UNTIL_TOLD)
        one.wait_for_file(job, "starts")
        go = code_of(one, job) / "go"  # now: the suspended server may hold the lock of the database
        host.signal(signal.SIGSTOP)
        go.touch()
        eventually(one.paths(job).exit.exists, "the job ends without the server")
        host.signal(signal.SIGCONT)
        assert one.wait(job).state == FINISHED
        assert one.history(job) == [SUBMITTED, PENDING, RUNNING, FINISHED]


def test_a_suspended_runner_is_adopted_and_not_replaced(tmp_path: Path) -> None:
    with host_bench(tmp_path) as (host, one):
        job = one.submit(UNTIL_TOLD)
        one.wait_for_file(job, "starts")
        runner = runner_of(one, job)
        os.kill(runner, signal.SIGSTOP)
        host.restart()
        eventually(lambda: "adopted" in one.launcher_log(job), "the server adopts the job")
        (code_of(one, job) / "go").touch()
        os.kill(runner, signal.SIGCONT)
        assert one.wait(job).state == FINISHED
        assert (code_of(one, job) / "starts").read_text() == "x"


DAEMONS = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        open("daemon.part", "w").write(str(os.getpid()))
        os.rename("daemon.part", "daemon")
        time.sleep(600)
    os._exit(0)
time.sleep(600)
"""


def test_die_with_server_ends_all_processes_of_a_job(tmp_path: Path) -> None:
    with host_bench(tmp_path, die_with_server=True) as (host, one):
        job = one.submit(DAEMONS)
        daemon = int(one.wait_for_file(job, "daemon"))
        runner = runner_of(one, job)
        host.kill()
        eventually(lambda: gone(daemon) and gone(runner), "all processes of the job end")
        assert not one.leftovers(job)
        host.start()
        row = one.wait(job)
        assert (row.state, row.reason) == (KILLED, wire.STOPPED)
        assert row.message == "killed together with the server (--die-with-server)"


def test_a_runner_killed_without_a_server_is_noticed(tmp_path: Path) -> None:
    with host_bench(tmp_path) as (host, one):
        job = one.submit(textwrap.dedent(DAEMONS))
        daemon = int(one.wait_for_file(job, "daemon"))
        host.kill()
        os.kill(runner_of(one, job), signal.SIGKILL)
        host.start()
        row = one.wait(job)
        assert (row.state, row.reason) == (ERROR, wire.LOST)
        assert row.message == "the runner was killed; no process of the job is left"
        assert gone(daemon)


def test_the_next_server_finishes_the_removal_of_a_deleted_exec(tmp_path: Path) -> None:
    with host_bench(tmp_path) as (host, one):
        job = one.submit(COUNTED)
        one.wait(job)
        paths = one.paths(job)
        host.kill()
        one.delete(job)
        host.start()
        eventually(lambda: not paths.root.exists() and not paths.state.exists(), "the files of the job are removed")


