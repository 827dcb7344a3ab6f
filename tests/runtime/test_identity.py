"""What identifies the processes of a job after a restart of the server: the boot of the machine, and the home."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

#: Reads the id of the boot with 0 free descriptors; with `known`, also before.
BOOT = """
import json, resource, sys
from local_backend.boot import boot_id
found = []
if "known" in sys.argv:
    found.append(boot_id())
resource.setrlimit(resource.RLIMIT_NOFILE, (0, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
try:
    found.append(boot_id())
except OSError as problem:
    found.append(problem.errno)
print(json.dumps(found))
"""
#: Prints the mark of a job for each spelling of the home.
HOMES = """
import os, sys
from local_backend.runtime.processes import mark_of
from local_backend.settings import Settings
for os.environ["DLICMD_HOME"] in sys.argv[1:]:
    print(mark_of(Settings.from_environment().paths.job("local-1", "ada").state))
"""


def printed(program: str, *words: str, **more: str) -> str:
    done = subprocess.run([sys.executable, "-c", program, *words], env=os.environ | more, capture_output=True,
                          text=True, check=True)
    return done.stdout.strip()


def test_a_passing_error_does_not_look_like_a_reboot() -> None:
    first, second = json.loads(printed(BOOT, "known"))
    assert first == second
    (failed,) = json.loads(printed(BOOT))
    assert isinstance(failed, int), "a process that cannot read the id must not invent one"


def test_the_marks_of_jobs_do_not_depend_on_the_spelling_of_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    spelled = ("link", "real/", "real/../real", "./real")
    marks = printed(HOMES, str(tmp_path / "real"), *spelled, *(str(tmp_path / one) for one in spelled), "other").split()
    assert len(marks) == 10 and set(marks[:-1]) == {marks[0]} != {marks[-1]}
