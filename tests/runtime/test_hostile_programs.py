"""Programs that attack the files and processes around them."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
from pathlib import Path

import pytest
from runtime_support import Bench
from support import PATIENCE, eventually

from dlicmd.contract.states import ERROR, FINISHED
from local_backend.runtime import tree
from local_backend.runtime.leftovers import Leftovers
from local_backend.runtime.processes import MARK, mark_of


def test_the_message_of_an_exec_is_not_read_through_a_link(cold: Bench, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("the secret\n")
    one = cold.submit(
        "import os, sys\n"
        "stderr = os.readlink('/proc/self/fd/2')\n"
        "os.unlink(stderr)\n"
        f"os.symlink({str(tmp_path / 'secret')!r}, stderr)\n"
        "sys.exit(1)\n"
    )
    assert cold.wait(one).message == "exit code 1"


def test_a_program_that_removes_its_job_folder_ends_as_it_would_have(cold: Bench) -> None:
    jobs = cold.settings.paths.jobs
    two = cold.submit(f"import os, shutil\nshutil.rmtree(os.path.join({str(jobs)!r}, os.environ['DLI_EXECID']))\n")
    assert cold.wait(two).state == FINISHED
    assert cold.wait(cold.submit("pass")).state == FINISHED


def test_a_program_that_kills_its_runner_leaves_no_process(cold: Bench) -> None:
    one = cold.submit("import os, time\nif os.fork():\n    os.kill(os.getppid(), 9)\ntime.sleep(600)\n")
    assert cold.wait(one).state == ERROR
    eventually(lambda: not cold.leftovers(one), "all processes of the job have ended")
    assert cold.wait(cold.submit("pass")).state == FINISHED


#: A program that starts a daemon, records its own end, and kills its runner.
FORGED = """
import json, os, pathlib, signal, time
if os.fork() == 0:
    os.setsid()
    time.sleep(600)
(pathlib.Path({home!r}) / "jobs" / os.environ["APP_ID"] / "exit.json").write_text(json.dumps({{
    "attempt": 1, "state": "FINISHED", "end_time": time.time(), "exit_code": 0, "signal": None, "message": None,
    "reason": None, "progress": {{}},
}}))
os.kill(os.getppid(), signal.SIGKILL)
"""


def test_a_program_that_records_its_own_end_leaves_no_process(cold: Bench) -> None:
    one = cold.submit(FORGED.format(home=str(cold.settings.home)))
    assert cold.wait(one).state == FINISHED
    assert not cold.leftovers(one)


def test_a_process_that_does_not_end_is_reported_until_it_ends(
    cold: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = cold.paths(cold.submit("pass"))
    cold.wait(paths.exec_id)
    leftovers = Leftovers()

    def kill() -> int | None:
        try:
            return leftovers.kill(paths)
        except TimeoutError:
            return None

    with subprocess.Popen(["/bin/sleep", "600"], env={MARK: mark_of(paths.state)}) as process:
        eventually(lambda: cold.leftovers(paths.exec_id), "the process has its environment")
        with monkeypatch.context() as stuck:
            stuck.setattr(tree, "kill", lambda processes: None)
            for _ in range(2):
                with pytest.raises(TimeoutError, match=str(process.pid)):
                    leftovers.kill(paths)
        assert eventually(kill, "the process ends") == 1
        assert process.wait(PATIENCE) == -signal.SIGKILL
    assert leftovers.kill(paths) == 0


#: Ends its first thread and continues in the second one. The system then shows the process as a zombie.
HALF = """
import ctypes, os, platform, threading, time
EXIT = {"x86_64": 60, "aarch64": 93}
if os.fork() == 0:
    os.setsid()
    def live():
        while ") Z " not in open(f"/proc/{os.getpid()}/stat").read():
            time.sleep(0.01)
        open("daemon.part", "w").write(str(os.getpid()))
        os.rename("daemon.part", "daemon")
        time.sleep(600)
    threading.Thread(target=live).start()
    ctypes.CDLL(None).syscall(EXIT[platform.machine()], 0)
while not os.path.exists("daemon"):
    time.sleep(0.01)
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"),
                    reason="the number of the system call is unknown for this processor")
def test_a_process_whose_first_thread_has_ended_does_not_outlive_its_job(cold: Bench) -> None:
    one = cold.submit(HALF)
    pid = int(cold.wait_for_file(one, "daemon"))
    assert cold.wait(one).state == FINISHED
    assert not os.path.exists(f"/proc/{pid}/task") or len(os.listdir(f"/proc/{pid}/task")) <= 1


#: A program that replaces its own standard error and fails.
SWAP = """
import os, sys
place = os.readlink("/proc/self/fd/2")
os.unlink(place)
{deed}
sys.exit(1)
"""


@pytest.mark.parametrize("deed", ["os.symlink({secret!r}, place)", "os.link({secret!r}, place)", "os.mkfifo(place)",
                                  "os.mkdir(place)"])
def test_a_file_that_replaces_the_output_does_not_become_the_message(
    cold: Bench, tmp_path: Path, deed: str
) -> None:
    (tmp_path / "secret").write_text("the secret\n")
    one = cold.submit(SWAP.format(deed=deed.format(secret=str(tmp_path / "secret"))))
    assert cold.wait(one).message == "exit code 1"
    assert (tmp_path / "secret").read_text() == "the secret\n"


@pytest.mark.integration
@pytest.mark.parametrize("deed", ["os.symlink({secret!r}, place)", "os.link({secret!r}, place)", "os.mkfifo(place)"])
def test_a_replaced_launcher_log_does_not_block_other_jobs(cold: Bench, tmp_path: Path, deed: str) -> None:
    (tmp_path / "secret").write_text("the secret\n")
    jobs = cold.settings.paths.jobs
    one = cold.submit(
        f"import os\nplace = os.path.join({str(jobs)!r}, os.environ['DLI_EXECID'], 'launcher.log')\nos.unlink(place)\n"
        + deed.format(secret=str(tmp_path / "secret"))
    )
    assert cold.wait(one).state == FINISHED
    assert cold.wait(cold.submit("pass")).state == FINISHED
    assert (tmp_path / "secret").read_text() == "the secret\n"


#: The first start replaces its standard output and kills itself; the second start prints.
AGAIN = """
import os, signal
if os.environ["DLI_RESTARTS"] == "0":
    place = os.readlink("/proc/self/fd/1")
    os.unlink(place)
    {deed}
    os.kill(os.getpid(), signal.SIGKILL)
print("written")
"""


@pytest.mark.parametrize("deed", ["os.symlink({secret!r}, place)", "os.link({secret!r}, place)", "os.mkfifo(place)"])
def test_a_restarted_program_does_not_write_into_a_replaced_output_file(
    cold: Bench, tmp_path: Path, deed: str
) -> None:
    (tmp_path / "secret").write_text("the secret\n")
    script = AGAIN.format(deed=deed.format(secret=str(tmp_path / "secret")))
    one = cold.submit(script, framework="edtPyTorch", elastic=True)
    assert cold.wait(one).state == FINISHED
    assert cold.paths(one).capture("task0", "stdout", True).read_text() == "written\n"
    assert (tmp_path / "secret").read_text() == "the secret\n"
