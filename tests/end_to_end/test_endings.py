"""The final states of jobs, and the messages and exit codes of dlicmd for them."""

from __future__ import annotations

import json
import os
import re
import signal

import psutil
import pytest
from support import eventually

pytestmark = pytest.mark.integration

FAILS = "import sys\nprint('before')\nraise ValueError('no such digit: ß')\n"
#: Waits without polling until a signal ends the process.
WAITS = "import signal, sys\nprint('ready', flush=True)\nsignal.pause()\n"


def ready(user, exec_id: str) -> None:
    """Wait until the program of an exec has printed `ready`."""
    eventually(lambda: "ready" in user.run("--exec-trainoutlogs", exec_id).out, "the program runs")


@pytest.mark.usefixtures("warm")
def test_a_failing_program_is_reported_with_its_own_traceback(user) -> None:
    folder = user.model("my model", train=FAILS)
    done = user.run("--exec-start", "PyTorch", "--model-dir", str(folder), "--model-main", "train.py", "--follow")
    assert done.code == 3, done
    assert "ValueError: no such digit: ß" in done.err + done.out
    exec_id = next(iter(json.loads(user.run("--exec-get-all", "-o", "json").out)))["id"]
    shown = user.run("--exec-get", exec_id).json
    assert shown["state"] == "ERROR" and shown["exitCode"] == 1
    assert shown["message"] == "ValueError: no such digit: ß"
    trace = user.run("--exec-trainerrlogs", exec_id).out
    assert trace.startswith("Traceback (most recent call last):") and 'train.py", line 3, in <module>' in trace
    assert trace.count("File ") == 1, "the traceback must contain only frames of the user"
    assert user.run("--exec-trainoutlogs", exec_id).out.strip() == "before"
    assert "ValueError: no such digit: ß" in user.run("--exec-launcherlogs", exec_id).out


def test_pass_exit_code_returns_the_exit_code_of_the_program(user) -> None:
    folder = user.model("m", train="import sys\nsys.exit(42)\n")
    words = ("--exec-start", "PyTorch", "--model-dir", str(folder), "--model-main", "train.py", "--wait")
    assert user.run(*words).code == 3
    assert user.run(*words, "--pass-exit-code").code == 42


def folder_of(process: psutil.Process) -> str:
    """Return the working directory of a process; "" if the process has ended."""
    try:
        return process.cwd()
    except psutil.Error:
        return ""


@pytest.mark.usefixtures("warm")
def test_stop_ends_all_processes_of_a_job(user) -> None:
    program = (
        "import os, sys, time, subprocess\n"
        "for _ in range(2):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork() == 0:\n"
        "            subprocess.Popen(['sleep', '1000'], start_new_session=True).wait()\n"
        "        os._exit(0)\n"
        "print('ready', flush=True)\n"
        "time.sleep(1000)\n"
    )
    folder = user.model("m", train=program)
    exec_id = user.submit("PyTorch", "--model-dir", str(folder), "--model-main", "train.py")
    ready(user, exec_id)
    before = []

    def all_started() -> bool:
        before[:] = [process for process in user.processes() if f"/{exec_id}/" in f"{folder_of(process)}/"]
        return len(before) >= 5

    eventually(all_started, "the program and its children run")
    stopped = user.run("--exec-stop", exec_id)
    assert stopped.code == 0 and stopped.out.strip() == f"Stop exec {exec_id} succeed. HTTP:204"
    assert user.run("--wait", exec_id).code == 4
    assert not [process for process in before if process.is_running() and process.status() != "zombie"]
    assert user.run("--exec-get", exec_id).json["state"] == "KILLED"


def test_a_job_survives_killed_servers(user) -> None:
    program = "import os, time\nprint('ready', flush=True)\n" \
              "while not os.path.exists('go'):\n    time.sleep(0.05)\nprint('done')\n"
    folder = user.model("m", train=program)
    exec_id = user.submit("PyTorch", "--model-dir", str(folder), "--model-main", "train.py")
    ready(user, exec_id)
    shown = user.run("--exec-get", exec_id).json
    os.kill(user.server_pid, signal.SIGKILL)
    after = user.run("--exec-get", exec_id)
    assert after.code == 0 and after.json["state"] == "RUNNING", after
    os.kill(user.server_pid, signal.SIGKILL)
    with open(os.path.join(shown["workDir"], "go"), "w"):
        pass
    assert user.run("--wait", exec_id).code == 0
    assert user.run("--exec-trainoutlogs", exec_id).out.split() == ["ready", "done"]


def test_an_interrupt_of_follow_detaches_from_the_job(user) -> None:
    folder = user.model("m", train=WAITS)
    process = user.start("--exec-start", "PyTorch", "--model-dir", str(folder), "--model-main", "train.py", "--follow")
    seen = []
    while "ready" not in "".join(seen):
        line = process.stdout.readline()
        assert line, process.communicate()
        seen.append(line)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    exec_id = json.loads("".join(seen)[("".join(seen)).index("{"):("".join(seen)).index("}") + 1])["execId"]
    assert f"--follow {exec_id}" in err and f"--exec-get {exec_id}" in err
    assert user.run("--exec-get", exec_id).json["state"] == "RUNNING"
    assert user.run("--wait", exec_id, "--wait-timeout", "1").code == 7


def test_a_job_that_needs_more_slots_than_exist_is_refused_and_ends_for_scripts_of_wmla(user) -> None:
    words = ("--exec-start", "distPyTorch", "--model-dir", str(user.model("m", train="print(1)\n")), "--model-main",
             "train.py", "--numWorker", "3")
    refused = user.run(*words, "--wait", "-o", "json")
    assert refused.code == 10 and refused.out == "", refused
    assert json.loads(refused.err.splitlines()[-1])["error"]["code"] == "submission.never_schedulable"
    user.environment["DLICMD_COMPAT"] = "wmla"
    exec_id = user.run(*words).json["execId"]
    assert user.run("--wait", exec_id).code == 10
    shown = user.run("--exec-get", exec_id).json
    assert shown["reason"] == "NEVER_SCHEDULABLE"
    assert re.findall("[0-9]+", shown["message"]) == ["3", "2"], shown


def test_a_pending_timeout_ends_a_pending_job(user) -> None:
    folder = user.model("m", train=WAITS)
    words = ("distPyTorch", "--model-dir", str(folder), "--model-main", "train.py", "--numWorker", "2")
    first = user.submit(*words)
    ready(user, first)
    second = user.run("--exec-start", *words, "--msd-pending-timeout", "1", "--wait")
    assert second.code == 3, second
    shown = user.run("--exec-get", second.json["execId"]).json
    assert shown["reason"] == "PENDING_TIMEOUT" and "1 s" in shown["message"]
    assert user.run("--exec-get", first).json["state"] == "RUNNING"


def test_a_memory_limit_ends_one_job_and_not_the_other(user) -> None:
    calm = user.submit("PyTorch", "--model-dir", str(user.model("calm", train=WAITS)), "--model-main", "train.py")
    ready(user, calm)
    greedy = "hoard = bytearray(800 * 2**20)\nhoard[::4096] = b'x' * len(hoard[::4096])\n" + WAITS
    done = user.run("--exec-start", "PyTorch", "--model-dir", str(user.model("greedy", train=greedy)),
                    "--model-main", "train.py", "--workerMemory", "500m", "--wait")
    assert done.code == 3, done
    shown = user.run("--exec-get", done.json["execId"]).json
    assert shown["reason"] == "OUT_OF_MEMORY" and "out of memory" in shown["message"]
    assert user.run("--exec-get", calm).json["state"] == "RUNNING"


def test_words_reach_the_program_unchanged(user) -> None:
    folder = user.model("späte \"Ernte\"", train="import sys, json\nprint(json.dumps(sys.argv[1:]))\n")
    words = ["--lr", "0.1", "--name", "DDP Tutorial", "--q", "it's \"so\"", "--json", '{"a": [1, 2]}', "-x", "#&+%41",
             "ü", ""]
    done = user.run("--exec-start", "PyTorch", "--model-dir", str(folder), "--model-main", "train.py",
                    "--appName", "My App", "--follow", *words, "--", "-o", "x y", "--numWorker", "9")
    assert done.code == 0, done
    line = next(line for line in done.out.splitlines() if line.startswith('["--lr"'))
    assert json.loads(line) == [*words, "-o", "x y", "--numWorker", "9"]
    shown = user.run("--exec-get", last_id(user)).json
    assert shown["appName"] == "My App"


def last_id(user) -> str:
    """Return the id of the newest exec."""
    return str(json.loads(user.run("--exec-get-all", "-o", "json").out)[-1]["id"])


def test_delete_removes_all_files_of_an_exec(user) -> None:
    folder = user.model("m", train="print('x')\n")
    exec_id = user.submit("PyTorch", "--model-dir", str(folder), "--model-main", "train.py")
    user.run("--wait", exec_id)
    assert user.run("--exec-delete", exec_id).code == 0
    assert user.run("--exec-get", exec_id).code == 6
    eventually(lambda: not any(exec_id in names for _, names, _ in os.walk(user.home)), "the files are gone")
