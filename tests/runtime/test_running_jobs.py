"""Jobs from submission to their end, run by the supervisor."""

from __future__ import annotations

import os
import signal
import textwrap

import pytest
from runtime_support import Bench, gone, runner_of
from sqlalchemy import Connection
from support import eventually

from dlicmd.contract import wire
from dlicmd.contract.states import ERROR, FINISHED, KILLED, PENDING, RUNNING, SUBMITTED
from local_backend.store import execs

SLEEP = "import time\nopen('started', 'w').write('x')\ntime.sleep(600)\n"


def test_a_program_runs_to_its_end_and_its_output_is_kept(backend: Bench) -> None:
    program = """
        import os, sys
        print("in", os.getcwd(), sys.argv)
        print("trouble", file=sys.stderr)
        assert sys.stdin.read() == ""
    """
    one = backend.submit(textwrap.dedent(program), arguments=("--name", "two words", "ü'\""))
    row = backend.wait(one)
    assert (row.state, row.exit_code, row.message, row.reason) == (FINISHED, 0, None, None)
    assert backend.history(one) == [SUBMITTED, PENDING, RUNNING, FINISHED]
    code = backend.paths(one).code(row.workload)
    assert backend.output(one) == f"in {code} {[f'{code}/main.py', '--name', 'two words', 'ü' + chr(39) + chr(34)]}\n"
    assert backend.output(one, "stderr") == "trouble\n"
    assert row.start_time is not None and row.end_time is not None and row.start_time <= row.end_time
    assert not backend.leftovers(one)
    captured = backend.paths(one).capture("task12n-1", "stdout", False)
    assert captured.stat().st_mode & 0o777 == 0o600


def test_output_can_be_read_while_the_program_runs(backend: Bench) -> None:
    one = backend.submit("import time\nprint('first', end='')\ntime.sleep(600)\n")
    eventually(lambda: backend.output(one) == "first", "output appears")
    backend.wait_running(one)
    backend.stop(one)
    assert backend.wait(one).state == KILLED


#: Python reports the exception of `__del__` after the exception that ends the program, and ignores it.
IGNORED = "class File:\n    def __del__(self):\n        self.missing.close()\nfile = File()\n"


@pytest.mark.parametrize(
    ("program", "message", "code"),
    [
        ("raise ValueError('boom')", "ValueError: boom", 1),
        ("import sys; sys.exit(3)", "exit code 3", 3),
        ("import sys; print('busy', file=sys.stderr); sys.exit(17)",
         "exit code 17; last line on standard error: busy", 17),
        ("import sys; sys.exit('no data')", "no data", 1),
        ("import os; os.kill(os.getpid(), 9)", "killed by signal 9 (SIGKILL)", 137),
        ("import os; os.kill(os.getpid(), 11)", "killed by signal 11 (SIGSEGV)", 139),
        ("def f(:\n", "SyntaxError: invalid syntax", 1),
        ("raise RuntimeError('CUDA error: out of memory\\nCompile with TORCH_USE_CUDA_DSA.')",
         "RuntimeError: CUDA error: out of memory; last line on standard error: Compile with TORCH_USE_CUDA_DSA.", 1),
        ("try:\n    {}['a']\nexcept KeyError as error:\n    raise ValueError('no\\n\\na') from error",
         "ValueError: no; last line on standard error: a", 1),
        ("import sys, traceback\ntry:\n    {}['a']\nexcept KeyError:\n    traceback.print_exc()\n"
         "    sys.exit('no data')", "KeyError: 'a'; last line on standard error: no data", 1),
        (IGNORED + "raise ValueError('boom')", "ValueError: boom", 1),
        (IGNORED + "import sys; sys.exit('no data')", "no data", 1),
    ],
)
def test_a_failing_program_ends_in_error_with_a_reason(cold: Bench, program: str, message: str, code: int) -> None:
    one = cold.submit(program)
    row = cold.wait(one)
    assert (row.state, row.message, row.reason, row.exit_code) == (ERROR, message, wire.PROGRAM_FAILED, code)
    assert message in cold.launcher_log(one)
    assert cold.history(one)[-2:] == [RUNNING, ERROR]


def test_a_program_that_cannot_be_started_reports_the_reason(cold: Bench) -> None:
    one = cold.submit({"notes.txt": ""}, user_cmd=("no-such-program", "1"))
    row = cold.wait(one)
    assert (row.state, row.exit_code) == (ERROR, 127)
    assert row.message is not None and "no-such-program: No such file" in row.message


def test_a_command_runs_without_a_shell_in_the_code_directory(cold: Bench) -> None:
    script = "#!/bin/sh\nprintf '%s|' \"$@\"\npwd\n"
    one = cold.submit({"go.sh": script}, user_cmd=("go.sh", "$HOME", "a b", "*"))
    row = cold.wait(one)
    assert row.state == FINISHED, row.message
    assert cold.output(one) == f"$HOME|a b|*|{cold.paths(one).code(row.workload)}\n"


def test_a_stop_ends_the_program_and_its_descendants(backend: Bench) -> None:
    program = """
        import os, subprocess, sys, time
        grandchild = "import os, time; open('daemon', 'w').write(str(os.getpid())); time.sleep(600)"
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execv(sys.executable, [sys.executable, "-c", grandchild])
            os._exit(0)
        time.sleep(600)
    """
    one = backend.submit(textwrap.dedent(program))
    daemon = int(eventually(lambda: backend.wait_for_file(one, "daemon"), "the daemon starts"))
    runner = runner_of(backend, one)
    backend.stop(one)
    row = backend.wait(one)
    assert (row.state, row.reason, row.message) == (KILLED, wire.STOPPED, "stopped on request")
    assert gone(daemon)
    eventually(lambda: gone(runner), "the runner has ended")


def test_a_program_that_ignores_sigterm_is_killed_after_the_grace(backend: Bench) -> None:
    program = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP
    one = backend.submit(program)
    backend.wait_for_file(one, "started")
    backend.stop(one)
    assert backend.wait(one).state == KILLED
    assert not backend.leftovers(one)


def test_a_program_can_print_during_the_grace_of_a_stop(backend: Bench) -> None:
    program = "import signal, sys\nsignal.signal(15, lambda *_: (print('bye'), sys.exit(0)))\n" + SLEEP
    one = backend.submit(program)
    backend.wait_for_file(one, "started")
    backend.stop(one)
    assert backend.wait(one).state == KILLED
    assert backend.output(one) == "bye\n"


def test_a_finished_job_leaves_no_daemon_behind(backend: Bench) -> None:
    program = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(600)\n"
    one = backend.submit(program)
    assert backend.wait(one).state == FINISHED
    assert not backend.leftovers(one)


def test_a_stop_at_the_end_of_a_job_leads_to_one_final_state(backend: Bench) -> None:
    ended = []
    for _ in range(4):
        one = backend.submit("import os\nwhile not os.path.exists('go'): pass\n")
        backend.wait_running(one)
        (backend.paths(one).code(backend.row(one).workload) / "go").touch()
        backend.stop(one)
        backend.wait(one)
        ended.append(backend.history(one))
    for history in ended:
        assert history[:3] == [SUBMITTED, PENDING, RUNNING]
        assert len(history) == 4
        assert history[3] in (FINISHED, KILLED)


def test_a_pending_exec_reports_its_reason_and_can_be_stopped(backend: Bench) -> None:
    first = backend.submit(SLEEP, framework="distPyTorch", num_worker=2)
    backend.wait_running(first)
    second = backend.submit(SLEEP)
    sentence = "waiting for 1 CPU slot; 0 of 2 CPU slots are free"
    eventually(lambda: backend.waits_for(second) == sentence, "the job reports its reason")
    backend.stop(second)
    assert backend.wait(second).state == KILLED
    assert backend.history(second) == [SUBMITTED, PENDING, KILLED]
    assert backend.row(first).state == RUNNING
    backend.stop(first)
    backend.wait(first)


def test_execs_start_in_order_as_slots_become_free(backend: Bench) -> None:
    programs = [backend.submit("print(1)", device_num=2) for _ in range(4)]
    rows = [backend.wait(one) for one in programs]
    assert [row.state for row in rows] == [FINISHED] * 4
    starts = [row.start_time for row in rows]
    assert starts == sorted(starts, key=lambda moment: moment or 0)


def test_an_exec_that_asks_for_too_many_slots_fails_with_advice(cold: Bench) -> None:
    row = cold.wait(cold.submit(SLEEP, framework="distPyTorch", num_worker=3))
    assert (row.state, row.reason) == (ERROR, wire.NEVER_SCHEDULABLE)
    assert row.message is not None and "--numWorker" in row.message and "DLI_SLOTS" in row.message


def test_an_exec_ends_at_its_pending_timeout(backend: Bench) -> None:
    first = backend.submit(SLEEP, framework="distPyTorch", num_worker=2)
    backend.wait_running(first)
    row = backend.wait(backend.submit(SLEEP, pending_timeout=1))
    assert (row.state, row.reason) == (ERROR, wire.PENDING_TIMEOUT)
    backend.stop(first)
    backend.wait(first)


def test_a_gpu_job_runs_on_a_machine_without_gpus(cold: Bench) -> None:
    one = cold.submit("import os; print(repr(os.environ['CUDA_VISIBLE_DEVICES']))", device_type="gpu")
    assert cold.wait(one).state == FINISHED
    assert cold.output(one) == "''\n"
    assert "CPU slots" in cold.launcher_log(one)


def test_the_first_worker_that_fails_ends_the_job(backend: Bench) -> None:
    program = """
        import os, time
        if os.environ["RANK"] == "1":
            raise RuntimeError("worker down")
        time.sleep(600)
    """
    one = backend.submit(textwrap.dedent(program), framework="distPyTorch", num_worker=2)
    row = backend.wait(one)
    assert (row.state, row.message) == (ERROR, "RuntimeError: worker down")
    assert "RuntimeError" in backend.output(one, "stderr", "task12n-2")
    assert not backend.leftovers(one)


def test_deleting_an_exec_stops_it_and_removes_its_files(backend: Bench) -> None:
    program = "import os\nos.mkdir('locked')\nopen('locked/f', 'w')\nos.chmod('locked', 0)\n" + SLEEP
    one = backend.submit(program)
    backend.wait_for_file(one, "started")
    runner = runner_of(backend, one)
    paths = backend.paths(one)
    backend.delete(one)
    eventually(lambda: backend.database.read(lambda c: not _is_there(c, one)), "the row is removed")
    assert not paths.root.exists() and not paths.state.exists()
    eventually(lambda: gone(runner), "the runner has ended")


def _is_there(connection: Connection, exec_id: str) -> bool:
    return execs.get(connection, exec_id, deleted=True) is not None


def test_a_pending_exec_can_be_deleted(backend: Bench) -> None:
    first = backend.submit(SLEEP, framework="distPyTorch", num_worker=2)
    backend.wait_running(first)
    second = backend.submit(SLEEP)
    backend.delete(second)
    eventually(lambda: backend.database.read(lambda c: not _is_there(c, second)), "the row is removed")
    backend.stop(first)
    backend.wait(first)


def test_the_number_of_workers_is_known_while_a_job_runs(backend: Bench) -> None:
    one = backend.submit(SLEEP, framework="distPyTorch", num_worker=2)
    backend.wait_running(one)
    eventually(lambda: backend.told(one, wire.WORKERS) == 2, "the server reports 2 workers")
    status = backend.supervisor.status()  # type: ignore[attr-defined]
    assert status["slots"] == {"total": 2, "held": 2, "drained": {}, "cpu": 2}
    assert (status["running"], status["queued"], status["nursery"]) == (1, 0, {"state": "off"})
    backend.stop(one)
    backend.wait(one)


def test_only_the_worker_over_its_memory_limit_is_killed(backend: Bench) -> None:
    greedy = "import time\nhoard = bytearray(b'x') * (300 << 20)\ntime.sleep(600)\n"
    neighbour = backend.submit(SLEEP)
    backend.wait_for_file(neighbour, "started")
    one = backend.submit(greedy, memory=100 << 20)
    row = backend.wait(one)
    assert (row.state, row.reason) == (ERROR, wire.OUT_OF_MEMORY)
    assert row.message is not None
    assert row.message.startswith("out of memory: worker 1 used ")
    assert row.message.endswith(" of 100.0M (--workerMemory)")
    assert backend.row(neighbour).state == RUNNING
    backend.stop(neighbour)
    assert backend.wait(neighbour).state == KILLED


def test_memory_of_child_processes_counts(backend: Bench) -> None:
    program = """
        import os, time
        for _ in range(2):
            if os.fork() == 0:
                hoard = bytearray(b"x") * (80 << 20)
                time.sleep(600)
        time.sleep(600)
    """
    row = backend.wait(backend.submit(textwrap.dedent(program), memory=120 << 20))
    assert (row.state, row.reason) == (ERROR, wire.OUT_OF_MEMORY)


def test_shared_memory_pages_count_once(backend: Bench) -> None:
    program = """
        import os, time
        shared = bytearray(b"x") * (60 << 20)
        for _ in range(3):
            if os.fork() == 0:
                time.sleep(1.5)
                os._exit(0)
        for _ in range(3):
            os.wait()
    """
    assert backend.wait(backend.submit(textwrap.dedent(program), memory=150 << 20)).state == FINISHED


def test_a_task_dies_with_its_runner_and_the_exec_is_lost(backend: Bench) -> None:
    program = SLEEP.replace("'x'", "str(__import__('os').getpid())")
    one = backend.submit(program)
    task = int(backend.wait_for_file(one, "started"))
    os.kill(runner_of(backend, one), signal.SIGKILL)
    row = backend.wait(one)
    assert (row.state, row.reason) == (ERROR, wire.LOST)
    assert gone(task)


@pytest.mark.integration
def test_a_runner_that_ignores_a_stop_is_killed(backend: Bench) -> None:
    one = backend.submit(SLEEP)
    backend.wait_for_file(one, "started")
    os.kill(runner_of(backend, one), signal.SIGSTOP)
    backend.stop(one)
    assert backend.wait(one).state == KILLED
    assert not backend.leftovers(one)

