"""Blocks of pages after `<!-- run -->` run as written.

First, each block after `<!-- file NAME -->` is written to that file. The marked blocks of a page run in order, with
one server, in a folder with the model folder `model`, the data folder `data`, and `samples`. `last` is a finished
exec.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from user import DEADLINE, User

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^<!-- (run|file (\S+)) -->\n```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TRAIN = "import os\nprint('epochs', *__import__('sys').argv[1:], os.environ['DATA_DIR'], flush=True)\n"


def marked() -> list[Path]:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "samples").rglob("*.md")]
    return sorted(page for page in pages if any(block[0] == "run" for block in BLOCK.findall(page.read_text("utf-8"))))


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[User]:
    """A user with the installed commands on the PATH, a model folder and data."""
    user = User(tmp_path / "home").warm()
    tools = tmp_path / "bin"
    tools.mkdir()
    programs = {"dlicmd": "dlicmd.cli", "dlim": "dlicmd.dlim", "local-backend": "local_backend.cli"}
    for name, program in programs.items():
        (tools / name).write_text(f"#!{sys.executable}\nimport sys\nfrom {program} import main\nsys.exit(main())\n")
        (tools / name).chmod(0o700)
    (tools / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tools / "python").chmod(0o700)
    data = tmp_path / "lake"
    (data / "mnist").mkdir(parents=True)
    (data / "mnist" / "digits.csv").write_text("1,2,3\n")
    user.environment |= {
        "PATH": f"{tools}:{os.environ['PATH']}", "DLI_DATA_FS": str(data), "DLI_SLOTS": "4",
        "DLI_MEMORY": "64G", "XDG_CONFIG_HOME": str(user.folder / ".config"),
    }
    user.model("model", train=TRAIN)
    shutil.copytree(data / "mnist", user.folder / "data")
    shutil.copytree(ROOT / "samples", user.folder / "samples")
    yield user
    user.close()


def test_pages_have_marked_blocks() -> None:
    """Without marked pages, the other test of this module would have no cases, and would be skipped."""
    assert {"data-sources", "options", "own-loop"} <= {page.stem for page in marked()}


@pytest.mark.parametrize("page", marked(), ids=lambda page: page.stem)
def test_marked_blocks_run(reader: User, page: Path) -> None:
    reader.submit("PyTorch", "--model-dir", "model", "--model-main", "train.py", "--wait")
    script = ["set -eo pipefail"]
    for kind, name, block in BLOCK.findall(page.read_text(encoding="utf-8")):
        if kind == "run":
            script.append(block)
        else:
            path = reader.folder / name.replace("~", str(reader.folder))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block, encoding="utf-8")
    with (reader.folder / "printed").open("w+") as printed:
        done = subprocess.run(
            ["bash", "-c", "\n".join(script)], cwd=reader.folder, env=reader.environment, stdin=subprocess.DEVNULL,
            stdout=printed, stderr=printed, timeout=DEADLINE, check=False,
        )
        printed.seek(0)
        assert done.returncode == 0, f"{page.name}\n{printed.read()}"
