"""`dlim debug`: one batch through a kernel on this machine, without a server."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

from dlicmd.cli.session import Session
from dlicmd.contract.exits import Exit
from dlicmd.sdk.deployment import model_folder
from dlicmd.sdk.errors import DlicmdError, UsageProblem
from dlicmd.sdk.hints import REMOTE_ALONE
from dlicmd.sdk.messages import inert

#: The program that calls the kernel, as a process: a kernel may end its process.
_PROGRAM = "local_backend.inference.kernel.debug"


def debug(session: Session) -> int:
    """Start the kernel of a folder, give it 1 batch, and print its answers. Return its exit code."""
    folder, given = Path(session.operand), session.line.text("--input")
    model_folder(str(folder))
    source = Path(given) if given is not None else folder / "input.json"
    if not source.is_file():
        raise UsageProblem(f"there is no file '{inert(str(source))}'; name one with --input FILE")
    try:
        found = importlib.util.find_spec(_PROGRAM)
    except ImportError:
        found = None
    if found is None:
        raise DlicmdError(f"kernels cannot run here: {REMOTE_ALONE}")
    batch = session.line.number("--batch")
    more = [] if batch is None else ["--batch", str(batch)]
    done = subprocess.run([sys.executable, "-m", _PROGRAM, str(folder), "--input", str(source), *more], check=False)
    return Exit.DONE if done.returncode == 0 else Exit.FAILED
