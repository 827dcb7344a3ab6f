"""Programs that attack the files and processes around them."""

from __future__ import annotations

from pathlib import Path

import pytest
from runtime_support import Bench
from support import eventually

from dlicmd.contract.states import ERROR, FINISHED


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


def test_a_program_that_removes_its_job_folder_ends_with_an_error(cold: Bench) -> None:
    jobs = cold.settings.paths.jobs
    two = cold.submit(f"import os, shutil\nshutil.rmtree(os.path.join({str(jobs)!r}, os.environ['DLI_EXECID']))\n")
    row = cold.wait(two)
    assert row.state == ERROR
    assert "was removed" in str(row.message)
    assert cold.wait(cold.submit("pass")).state == FINISHED


def test_a_program_that_kills_its_runner_leaves_no_process(cold: Bench) -> None:
    one = cold.submit("import os, time\nif os.fork():\n    os.kill(os.getppid(), 9)\ntime.sleep(600)\n")
    assert cold.wait(one).state == ERROR
    eventually(lambda: not cold.leftovers(one), "all processes of the job have ended")
    assert cold.wait(cold.submit("pass")).state == FINISHED


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
