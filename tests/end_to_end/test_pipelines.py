"""The steps of docs/pipelines.md and the example of docs/client.md with a real backend, and a job that fails."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import yaml
from user import DEADLINE, User

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parent.parent.parent
PROGRAM = """
import os, pathlib, sys
print("epochs:", *sys.argv[1:], flush=True)
(pathlib.Path(os.environ["RESULT_DIR"]) / "model" / "weights.txt").write_text("0.5")
"""


def example() -> str:
    text = (ROOT / "docs" / "client.md").read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[0]


def documents() -> list[dict[str, Any]]:
    text = (ROOT / "docs" / "pipelines.md").read_text(encoding="utf-8")
    return [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)]


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[User]:
    """A machine with the commands on its PATH and a checked-out model."""
    user = User(tmp_path / "home")
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, module in (("dlicmd", "dlicmd.cli"), ("python3", "")):
        call = f'-c "import sys; from {module} import main; sys.exit(main())" ' if module else ""
        (commands / name).write_text(f'#!/bin/sh\nexec {sys.executable} {call}"$@"\n')
        (commands / name).chmod(0o755)
    user.environment["PATH"] = f"{commands}:{user.environment['PATH']}"
    user.model("model", train=PROGRAM)
    yield user
    user.backend("stop", "--jobs")


def shell(user: User, *lines: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-eo", "pipefail", "-c", "\n".join(lines)], env=user.environment, cwd=user.folder, text=True,
        capture_output=True, timeout=DEADLINE, check=False,
    )


def test_the_steps_of_the_examples_work(runner: User) -> None:
    github, gitlab = documents()
    steps = [step["run"] for step in github["jobs"]["train"]["steps"] if "run" in step and step["name"] != "Install"]
    assert len(steps) == 3
    for step in steps:
        done = shell(runner, step)
        assert done.returncode == 0, (step, done)
    assert (runner.folder / "train.log").read_text() == "epochs: --epochs 2\n"
    assert (runner.folder / "result" / "model" / "weights.txt").read_text() == "0.5"
    exec_ = json.loads((runner.folder / "exec.json").read_text())
    assert {"id", "appId", "state", "framework", "createTime", "startTime", "endTime", "exitCode"} <= exec_.keys()
    assert exec_["state"] == "FINISHED" and ET.parse(runner.folder / "train.xml").getroot().get("failures") == "0"

    known = json.loads((runner.home / "backend.json").read_text())
    host, port = known["url"].removeprefix("http://").split(":")
    runner.environment |= {"WMLA_HOST": host, "WMLA_PORT": port, "DLICMD_TOKEN": known["token"]}
    done = shell(runner, "rm -r result", *gitlab["train"]["script"])
    assert done.returncode == 0 and "epochs:" in done.stderr, done
    assert (runner.folder / "result" / "model" / "weights.txt").exists()
    assert json.loads((runner.folder / "exec.json").read_text())["id"] != exec_["id"]

    (runner.folder / "own").mkdir()
    (runner.folder / "own" / "train.py").write_text(
        "import sys\nprint('epochs:', *sys.argv[1:])\nprint('step 1 loss 0.25')\n"
    )
    done = shell(runner, f"cd own\npython3 - <<'EOF'\n{example()}EOF")
    assert done.returncode == 0 and done.stdout.startswith("FINISHED "), done
    assert "epochs: --epochs 2" in done.stdout and "0.25" in done.stdout.splitlines()[-1], done

    runner.model("model", train="raise SystemExit(5)")
    done = shell(runner, *gitlab["train"]["script"])
    assert done.returncode == 3 and ET.parse(runner.folder / "train.xml").getroot().get("failures") == "1"
