"""Scripts on disk, and runs of them without a backend."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from fake_runner import FakeRunner, Outcome
from support import PATIENCE
from warm_script import WarmScript

BESIDE = """
from torch.nn import functional as F


def loss(outputs, labels):
    return F.cross_entropy(outputs, labels)
"""


def lay_out(tmp: Path, script: str) -> Path:
    """Make a code directory with the script and a module beside it, and a result directory."""
    code = tmp / "code"
    code.mkdir(parents=True)
    (tmp / "result").mkdir()
    (tmp / "log").mkdir()
    (code / "beside.py").write_text(BESIDE)
    (code / "train.py").write_text(textwrap.dedent(script))
    return code / "train.py"


def plain(tmp: Path, script: Path, *arguments: str) -> subprocess.CompletedProcess:
    """Run `python train.py` without a backend."""
    return subprocess.run(
        [sys.executable, str(script), *arguments],
        env=FakeRunner(tmp, 1).environment(PLAIN="1"),
        cwd=script.parent,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def alone(tmp: Path, script: Path, *arguments: str, **extra: str) -> Outcome:
    """Run a script without a backend in a process that has PyTorch imported."""
    process = WarmScript(script, arguments, FakeRunner(tmp, 1).environment(PLAIN="1", **extra), tmp)
    out, err = process.communicate(PATIENCE)
    assert process.returncode is not None
    return Outcome(process.returncode, out, err)
