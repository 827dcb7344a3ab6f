"""The processes of a job carry titles for ps, top and nvidia-smi; the program sees its own command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from runtime_support import Bench

from dlicmd.contract.states import FINISHED
from local_backend.runtime.overlay import short_title

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="titles need /proc")

TELLS = """
import json, os, subprocess, sys

def shown(pid):
    with open(f"/proc/{pid}/cmdline") as line, open(f"/proc/{pid}/comm") as name:
        return line.read().strip("\\0"), name.read().strip()

child = [sys.executable, "-c", "import os, sys; print(sys.argv, 'DLI_PROCESS_TITLE' in os.environ)"]
print(json.dumps({
    "own": shown("self"), "runner": shown(os.getppid()), "argv": sys.argv[1:],
    "is set": "DLI_PROCESS_TITLE" in os.environ,
    "child": subprocess.run(child, capture_output=True, text=True).stdout,
}))
"""


@pytest.mark.parametrize("variables", [{}, {"OMP_NUM_THREADS": "1"}], ids=["forked", "fresh"])
def test_a_worker_and_its_runner_have_titles(warm: Bench, variables: dict[str, str]) -> None:
    one = warm.submit(TELLS, variables=variables, arguments=("a", "b c"))
    assert warm.wait(one).state == FINISHED, warm.output(one, "stderr")
    found = json.loads(warm.output(one))
    assert found["own"] == [f"dlicmd {one} worker 1", f"{one} w1"]
    assert found["runner"] == [f"dlicmd {one} runner", f"{one} runner"]
    assert found["argv"] == ["a", "b c"] and found["is set"] is False and found["child"] == "['-c'] False\n"


def test_a_command_keeps_its_own_title(warm: Bench) -> None:
    one = warm.submit({"main.py": TELLS}, user_cmd=("python", "main.py"))
    assert warm.wait(one).state == FINISHED, warm.output(one, "stderr")
    words = json.loads(warm.output(one))["own"][0].split("\0")
    assert Path(words[-1]).name == "main.py"


@pytest.mark.parametrize(("title", "short"), [
    ("dlicmd server", "dlicmd server"), ("dlicmd local-7 worker 12", "local-7 w12"),
    ("dlicmd local-7 driver", "local-7 driver"), ("dlicmd local-123456 worker 3", "local-123456 w3"),
])
def test_top_shows_a_short_title(title: str, short: str) -> None:
    assert short_title(title) == short
