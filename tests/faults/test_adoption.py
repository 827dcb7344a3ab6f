"""A starting server reads the files of earlier jobs: attempts that never began, reboots and damaged records."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from puppets import strings
from runtime_support import Bench, Host, gone, host_bench, runner_of
from support import PATIENCE, eventually

from dlicmd.contract import wire
from dlicmd.contract.states import ERROR, FINISHED, PENDING, RECOVERING, RUNNING, SUBMITTED
from local_backend.interpreter import command
from local_backend.runtime import local_launcher, processes, runner
from local_backend.runtime.launch import Launch, RunnerIdentity, read_attempt, read_restarts, try_lock, write_attempt
from local_backend.runtime.local_launcher import survivor
from local_backend.runtime.paths import ExecPaths
from local_backend.store import execs
from local_backend.store.holdings import SlotPart

pytestmark = pytest.mark.integration

DATA = Path(__file__).parent.parent / "data"
COUNTED = "open('starts', 'a').write('x')\nimport os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n"


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Host, Bench]]:
    with host_bench(tmp_path) as both:
        yield both


def starts(one: Bench, job: str) -> str:
    return (one.paths(job).code(one.row(job).workload) / "starts").read_text()


def let_go(one: Bench, job: str) -> None:
    (one.paths(job).code(one.row(job).workload) / "go").touch()


def crash(host: Host, one: Bench, job: str, boot_id: str | None = None) -> None:
    """Kill server and runner. With `boot_id`, pretend that the machine has restarted since."""
    host.kill()
    os.kill(runner_of(one, job), signal.SIGKILL)
    eventually(lambda: not one.leftovers(job), "the processes of the job end with the runner")
    if boot_id is not None:
        path = one.paths(job).runner
        path.write_text(json.dumps(json.loads(path.read_text()) | {"boot_id": boot_id}))


def test_reboots_without_progress_end_a_job(pair: tuple[Host, Bench]) -> None:
    host, one = pair
    job = one.submit(COUNTED)
    one.wait_for_file(job, "starts")
    crash(host, one, job, "another-boot")
    host.start()
    eventually(lambda: starts(one, job) == "xx", "the job starts again")
    eventually(lambda: one.row(job).state == RUNNING, "the job runs")
    assert one.row(job).attempt == 2
    assert one.history(job) == [SUBMITTED, PENDING, RUNNING, PENDING, RUNNING]
    for count in (3, 4):
        crash(host, one, job, f"boot-{count}")
        host.start()
        eventually(lambda n=count: starts(one, job) == "x" * n, "the job starts again")
    crash(host, one, job, "the-last-boot")
    host.start()
    row = one.wait(job)
    assert (row.state, row.reason, starts(one, job)) == (ERROR, wire.LOST, "xxxx")


STEPS = """
import dlicmd, os, time
open('starts', 'a').write('x')
step = 0
while not os.path.exists('go'):
    if os.path.exists('step') and (text := open('step').read()) and int(text) > step:
        step = int(text)
        dlicmd.log(loss=1.0, step=step)
    time.sleep(0.01)
"""


def test_a_job_that_makes_progress_survives_any_number_of_reboots(pair: tuple[Host, Bench]) -> None:
    host, one = pair
    job = one.submit(STEPS)
    one.wait_for_file(job, "starts")
    for count in range(1, 7):
        eventually(lambda n=count: starts(one, job) == "x" * n, "the job starts")
        (one.paths(job).code(one.row(job).workload) / "step").write_text(str(count))
        eventually(lambda n=count: read_restarts(one.paths(job)).reached == n, "the runner notes the step")
        crash(host, one, job, f"boot-{count}")
        host.start()
    eventually(lambda: starts(one, job) == "x" * 7, "the job starts again")
    let_go(one, job)
    assert one.wait(job).state == FINISHED


def test_an_elastic_job_whose_runner_is_killed_continues(pair: tuple[Host, Bench]) -> None:
    host, one = pair
    with strings() as held:
        job = held.submit(one)
        for attempt in range(1, 3):
            driver = held.driver()
            driver.hello()
            driver.spawn(attempt, "cpu-0")
            worker = held.worker()
            driver.say(op="progress", step=attempt)
            one.wait_running(job)
            os.kill(runner_of(one, job), signal.SIGKILL)
            eventually(lambda w=worker: gone(w.pid), "the worker ends with its runner")
        crashed = held.driver()
        one.wait_running(job)
        crash(host, one, job)  # now without a server
        host.start()
        last = held.driver()
        assert (crashed.restarts, last.restarts) == ("2", "3")
        last.close()
        assert one.wait(job).state == FINISHED
    assert one.row(job).attempt == 4
    assert one.history(job) == [SUBMITTED, PENDING, *[RUNNING, PENDING] * 3, RUNNING, FINISHED]


def test_driver_and_runner_deaths_without_progress_count_together(pair: tuple[Host, Bench]) -> None:
    _, one = pair
    with strings() as held:
        job = held.submit(one)
        for attempt in (1, 2):
            held.driver().kill()
            alive = held.driver()  # ends when its connection is closed, and so must be referenced
            eventually(lambda n=attempt: one.row(job).attempt == n and one.row(job).state == RECOVERING, "it runs")
            os.kill(runner_of(one, job), signal.SIGKILL)
        row = one.wait(job)
        alive.close()
    assert (row.state, row.reason, row.attempt) == (ERROR, wire.LOST, 2)


def test_an_earlier_requeue_does_not_count_as_a_reboot(pair: tuple[Host, Bench]) -> None:
    host, one = pair
    job = one.submit(COUNTED)
    one.wait_for_file(job, "starts")
    spec = one.paths(job).spec
    spec.write_text(json.dumps(json.loads(spec.read_text()) | {"requeues": 1}))
    crash(host, one, job, "another-boot")
    host.start()
    eventually(lambda: starts(one, job) == "xx", "the job starts again")
    let_go(one, job)
    assert one.wait(job).state == FINISHED


def test_a_job_that_runs_through_an_upgrade_is_adopted(pair: tuple[Host, Bench]) -> None:
    host, one = pair
    job = one.submit(COUNTED)
    one.wait_for_file(job, "starts")
    host.kill()
    # The format in which a server of the previous version stored the job.
    flat = json.loads((DATA / "workload_1.json").read_text()) | {
        "exec_id": job, "framework": "PyTorch", "elastic": False, "num_worker": 1, "model_dir": "model-dir",
        "main": "main.py", "sources": [], "labels": {}, "device_type": None, "device_num": 1, "conda_env": None,
    }
    one.database.write(lambda c: c.exec_driver_sql(
        "UPDATE execs SET spec = ?, bundle = NULL WHERE id = ?", (json.dumps(flat, sort_keys=True), job)))
    host.start()
    let_go(one, job)
    row = one.wait(job)
    assert (row.state, row.attempt, row.user) == (FINISHED, 1, "bob") and starts(one, job) == "x"


def test_an_attempt_that_never_began_is_replaced(pair: tuple[Host, Bench]) -> None:
    host, one = pair
    host.kill()
    job = one.submit(COUNTED)
    one.database.write(lambda c: execs.transition(c, job, PENDING))
    one.database.write(lambda c: execs.begin_attempt(c, job, [SlotPart("cpu-0", "cpu")], "/local/training"))
    write_attempt(one.paths(job), 1)
    host.start()
    one.wait_for_file(job, "starts")
    let_go(one, job)
    assert one.wait(job).state == FINISHED
    assert one.row(job).attempt == 2
    assert starts(one, job) == "x"


def test_a_runner_that_starts_too_late_does_nothing(pair: tuple[Host, Bench]) -> None:
    _, one = pair
    job = one.submit(COUNTED)
    one.wait_for_file(job, "starts")
    paths = one.paths(job)
    before = paths.runner.read_bytes()
    let_go(one, job)
    assert one.wait(job).state == FINISHED
    for attempt in (1, 2):
        reader, writer = os.pipe()
        words = command("local_backend.runtime.runner", str(paths.spec), str(attempt), str(writer))
        subprocess.run(words, pass_fds=[writer], check=True, timeout=PATIENCE)
        os.close(writer)
        with open(reader, "rb") as pipe:
            assert pipe.read() == b""
    assert paths.runner.read_bytes() == before
    assert starts(one, job) == "x"


def test_a_fenced_attempt_cannot_begin(pair: tuple[Host, Bench]) -> None:
    host, one = pair
    host.kill()
    job = one.submit(COUNTED)
    paths = one.paths(job)
    write_attempt(paths, 1)
    assert survivor(paths, 1) is None
    assert read_attempt(paths) == 0


def test_an_attempt_is_fenced_while_another_process_holds_the_lock(
    pair: tuple[Host, Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    host, one = pair
    host.kill()
    job = one.submit(COUNTED)
    paths = one.paths(job)
    write_attempt(paths, 1)
    lock = try_lock(paths)
    assert lock is not None
    monkeypatch.setattr(local_launcher, "_PATIENCE", 0.0)
    assert survivor(paths, 1) is None
    assert read_attempt(paths) == 0
    os.close(lock)


def test_a_runner_sees_that_it_was_fenced_without_the_lock(
    pair: tuple[Host, Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server fences first and kills marked processes afterwards. So a runner checks `attempt` after it has a mark."""
    host, one = pair
    job = one.submit("")
    assert one.wait(job).state == FINISHED
    host.kill()
    paths = one.paths(job)
    launch = Launch.read(paths.spec)
    paths.runner.unlink()
    lock = runner._enter(launch, 1)
    assert lock is not None
    os.close(lock)
    monkeypatch.setattr(processes, "stamp", lambda *_: write_attempt(paths, 0))
    assert runner._enter(launch, 1) is None


def remove_records(paths: ExecPaths) -> None:
    paths.lock.unlink()
    paths.runner.unlink()


def replace_lock(paths: ExecPaths) -> None:
    paths.lock.unlink()
    paths.lock.symlink_to("/dev/null")


def garble(paths: ExecPaths) -> None:
    paths.runner.write_bytes(os.urandom(300))
    paths.restarts.write_bytes(b"\0" * 300)
    paths.exit.write_bytes(os.urandom(300))


def lock_away(paths: ExecPaths) -> None:
    for path in (paths.lock, paths.runner, paths.state):
        path.chmod(0)


def put_a_file(paths: ExecPaths) -> None:
    paths.state.rename(paths.state.with_name("moved"))
    while True:
        try:
            return paths.state.touch(exist_ok=False)
        except (FileExistsError, IsADirectoryError):  # the runner has made the folder again meanwhile
            shutil.rmtree(paths.state, ignore_errors=True)


def remove_folder(paths: ExecPaths) -> None:
    """Remove the folder in one step, because the runner writes into it meanwhile."""
    paths.state.rename(gone := paths.state.parents[1] / "gone")
    shutil.rmtree(gone, ignore_errors=True)


#: Damage to the files of a living runner, at any time while its server is down or up.
HARM = [
    lambda paths: paths.lock.unlink(), lambda paths: paths.runner.unlink(), remove_records, replace_lock, garble,
    lock_away, remove_folder,
]


@pytest.mark.parametrize("down", [True, False])
@pytest.mark.parametrize("harm", HARM)
def test_a_live_job_survives_damage_to_its_files(
    pair: tuple[Host, Bench], harm: Callable[[ExecPaths], None], down: bool
) -> None:
    host, one = pair
    job = one.submit(COUNTED)
    one.wait_for_file(job, "starts")
    one.wait_running(job)
    if down:
        host.kill()
    harm(one.paths(job))
    host.restart()
    eventually(lambda: one.paths(job).launcher_log.exists() and "adopted" in one.launcher_log(job), "it is adopted")
    let_go(one, job)
    row = one.wait(job)
    assert (row.state, row.attempt, starts(one, job)) == (FINISHED, 1, "x")


def test_a_live_job_survives_a_folder_that_cannot_be_used_for_a_while(pair: tuple[Host, Bench]) -> None:
    """Root ignores permissions, so a file takes the place of the folder."""
    host, one = pair
    job, waiting = one.submit(COUNTED, framework="distPyTorch", num_worker=2), one.submit("print(1)")
    one.wait_for_file(job, "starts")
    one.wait_running(job)
    host.kill()
    put_a_file(one.paths(job))
    host.start()
    eventually(lambda: one.row(waiting).state == PENDING, "the other job waits")
    assert "cpu" in (one.row(job).slots or "") and one.row(job).state == RUNNING
    one.paths(job).state.unlink()
    one.paths(job).state.with_name("moved").rename(one.paths(job).state)
    eventually(lambda: "adopted" in one.launcher_log(job), "the job is adopted")
    assert one.row(waiting).state == PENDING
    let_go(one, job)
    row = one.wait(job)
    assert (row.state, row.attempt, starts(one, job)) == (FINISHED, 1, "xx")
    assert one.wait(waiting).state == FINISHED


def test_processes_of_a_removed_folder_end_before_their_slots_are_given(pair: tuple[Host, Bench]) -> None:
    """The runner cannot make its folder again. So its job is lost after a while."""
    host, one = pair
    job = one.submit(COUNTED)
    one.wait_for_file(job, "starts")
    pid = runner_of(one, job)
    host.kill()
    put_a_file(one.paths(job))
    host.start()
    row = one.wait(job)
    assert (row.state, row.reason, starts(one, job)) == (ERROR, wire.LOST, "x")
    assert gone(pid) and not one.leftovers(job)


def test_processes_of_a_deleted_row_end_at_the_next_start(pair: tuple[Host, Bench], tmp_path: Path) -> None:
    host, one = pair
    job = one.submit(COUNTED)
    one.wait_for_file(job, "starts")
    one.wait_running(job)
    pid = runner_of(one, job)
    with host_bench(tmp_path / "other") as (_, other):
        bystander = other.submit(COUNTED)
        other.wait_for_file(bystander, "starts")
        host.kill()
        one.database.write(lambda c: c.exec_driver_sql("DELETE FROM execs WHERE id = ?", (job,)))
        host.start()
        assert gone(pid) and not one.leftovers(job)
        assert not gone(runner_of(other, bystander)), "the process of another home is killed"
        let_go(other, bystander)
        other.wait(bystander)
    assert one.wait(one.submit("print(1)")).state == FINISHED


def test_a_lock_that_is_held_is_not_taken(pair: tuple[Host, Bench]) -> None:
    _, one = pair
    job = one.submit(COUNTED)
    one.wait_for_file(job, "starts")
    assert try_lock(one.paths(job)) is None
    found = survivor(one.paths(job), 1)
    assert isinstance(found, RunnerIdentity)
    assert found.pid == runner_of(one, job)
    let_go(one, job)
    one.wait(job)


@pytest.mark.parametrize("text", ["", "[]", '{"attempt": 1}', '{"attempt": 1, "state": "GONE", "end_time": 1}'])
def test_a_damaged_record_loses_the_attempt_but_not_the_server(pair: tuple[Host, Bench], text: str) -> None:
    host, one = pair
    job = one.submit(COUNTED)
    one.wait_for_file(job, "starts")
    crash(host, one, job)
    one.paths(job).exit.write_text(text)
    host.start()
    row = one.wait(job)
    assert (row.state, row.reason) == (ERROR, wire.LOST)


def test_an_exec_without_files_ends_in_error(pair: tuple[Host, Bench]) -> None:
    host, one = pair
    job = one.submit(COUNTED)
    one.wait_for_file(job, "starts")
    crash(host, one, job)
    for path in sorted(one.paths(job).state.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    one.paths(job).state.rmdir()
    host.start()
    row = one.wait(job)
    assert (row.state, row.reason) == (ERROR, wire.LOST)
    assert row.message is not None and row.message.startswith("cannot read the files of the exec: ")


def test_a_job_that_cannot_start_yet_reports_why_and_is_retried(pair: tuple[Host, Bench]) -> None:
    host, one = pair
    host.kill()
    job = one.submit(COUNTED)
    blocker = one.paths(job).attempt
    blocker.mkdir()
    host.start()
    message = eventually(lambda: (one.row(job).message or "").startswith("cannot start the job now") and
                         one.row(job).message, "the job reports why it cannot start")
    assert "Is a directory" in str(message)
    assert one.row(job).state == PENDING
    blocker.rmdir()
    one.wait_for_file(job, "starts")
    let_go(one, job)
    assert one.wait(job).state == FINISHED
