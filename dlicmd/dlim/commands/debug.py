"""`dlim debug`: one batch through a kernel on this machine, without a server."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

from dlicmd.cli.session import Session
from dlicmd.contract.dlim import example_file
from dlicmd.contract.dlim_commands import KERNEL_TYPE
from dlicmd.contract.exits import Exit
from dlicmd.sdk.errors import DlicmdError, UsageProblem
from dlicmd.sdk.hints import REMOTE_ALONE
from dlicmd.sdk.messages import inert

#: The program that calls the kernel, as a process: a kernel may end its process.
_PROGRAM = "local_backend.inference.kernel.debug"


def debug(session: Session) -> int:
    """Start the kernel of a folder, give it 1 batch, and print its answers. Return its exit code."""
    folder = Path(session.operand)
    if not folder.is_dir():
        raise UsageProblem(f"'{inert(str(folder))}' {'is not a folder' if folder.exists() else 'does not exist'}")
    sources = [Path(one) for one in session.line.many("--input")] or [example_file(folder)]
    for source in sources:
        if not source.is_file():
            raise UsageProblem(f"there is no file '{inert(str(source))}'; name one with --input FILE")
    try:
        found = importlib.util.find_spec(_PROGRAM)
    except ImportError:
        found = None
    if found is None:
        raise DlicmdError(f"kernels cannot run here: {REMOTE_ALONE}")
    kind = session.line.text(KERNEL_TYPE.name)
    more = [] if kind is None else ["--kernel-type", kind]
    words = [str(folder), "--input", *map(str, sources), *more]
    done = subprocess.run([sys.executable, "-m", _PROGRAM, *words], check=False)
    return Exit.DONE if done.returncode == 0 else Exit.FAILED
