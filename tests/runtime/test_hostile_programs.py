"""Programs that turn against the files and processes around them."""

from __future__ import annotations

from pathlib import Path

from runtime_support import Bench
from support import eventually

from dlicmd.contract.states import ERROR, FINISHED


def test_the_message_of_an_exec_does_not_come_through_a_link(cold: Bench, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("the secret\n")
    one = cold.submit(
        "import os, sys\n"
        "stderr = os.readlink('/proc/self/fd/2')\n"
        "os.unlink(stderr)\n"
        f"os.symlink({str(tmp_path / 'secret')!r}, stderr)\n"
        "sys.exit(1)\n"
    )
    assert cold.wait(one).message == "exit code 1"


def test_a_program_that_removes_its_job_folder_ends(cold: Bench) -> None:
    jobs = cold.settings.paths.jobs
    two = cold.submit(f"import os, shutil\nshutil.rmtree(os.path.join({str(jobs)!r}, os.environ['DLI_EXECID']))\n")
    row = cold.wait(two)
    assert row.state == ERROR
    assert "was removed" in str(row.message)
    assert cold.wait(cold.submit("pass")).state == FINISHED


def test_a_program_that_kills_its_runner_leaves_nothing(cold: Bench) -> None:
    one = cold.submit("import os, time\nif os.fork():\n    os.kill(os.getppid(), 9)\ntime.sleep(600)\n")
    assert cold.wait(one).state == ERROR
    eventually(lambda: not cold.leftovers(one), "its processes are gone")
    assert cold.wait(cold.submit("pass")).state == FINISHED
