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
from runtime_support import Bench, Host, gone, host_bench, runner_of
from support import PATIENCE, eventually

from dlicmd.contract import wire
from dlicmd.contract.states import ERROR, FINISHED, PENDING, RUNNING, SUBMITTED
from local_backend.interpreter import command
from local_backend.runtime import local_launcher, processes, runner
from local_backend.runtime.launch import Launch, RunnerIdentity, read_attempt, try_lock, write_attempt
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


def test_a_job_is_queued_again_once_after_a_reboot(pair: tuple[Host, Bench]) -> None:
    host, one = pair
    job = one.submit(COUNTED)
    one.wait_for_file(job, "starts")
    crash(host, one, job, "another-boot")
    host.start()
    eventually(lambda: starts(one, job) == "xx", "the job starts again")
    eventually(lambda: one.row(job).state == RUNNING, "the job runs")
    assert one.row(job).attempt == 2
    assert one.history(job) == [SUBMITTED, PENDING, RUNNING, PENDING, RUNNING]
    crash(host, one, job, "yet-another-boot")
    host.start()
    row = one.wait(job)
    assert (row.state, row.reason) == (ERROR, wire.LOST)
    assert row.message == "the machine was restarted again while the job ran; no process of the job is left"
    assert starts(one, job) == "xx"


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


@pytest.mark.parametrize("harm", [remove_records, replace_lock, lambda paths: shutil.rmtree(paths.state)])
def test_a_runner_with_damaged_files_is_killed_before_its_slots_are_free(
    pair: tuple[Host, Bench], harm: Callable[[ExecPaths], None]
) -> None:
    host, one = pair
    job = one.submit(COUNTED)
    one.wait_for_file(job, "starts")
    pid = runner_of(one, job)
    host.kill()
    harm(one.paths(job))
    host.start()
    row = one.wait(job)
    assert (row.state, row.reason, starts(one, job)) == (ERROR, wire.LOST, "x")
    assert gone(pid) and not one.leftovers(job)


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
