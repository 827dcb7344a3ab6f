"""Checks whether this machine can isolate jobs: makes a sandbox, and runs a program in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from local_backend import interpreter
from local_backend.errors import ServingError
from local_backend.settings import Settings

CODE = "server.no_isolation"
_PATIENCE = 60.0
#: What an administrator can do.
CURE = ("install bubblewrap (the program bwrap) and permit user namespaces; or start the server with "
        "--jobs-share-server-account, if all its users may read everything that the server can read")


def trouble(settings: Settings) -> str | None:
    """Return why jobs cannot run in a sandbox on this machine; None if they can. Raises OSError."""
    from local_backend.runtime.environment import inherited
    from local_backend.runtime.view import of_machine

    with tempfile.TemporaryDirectory(prefix="dli-") as folder:
        mounts = json.dumps(of_machine(settings))
        try:
            done = subprocess.run(
                interpreter.command(__name__, folder), input=mounts, capture_output=True, text=True,
                cwd="/", env=inherited(os.environ), timeout=_PATIENCE, check=False)
        except subprocess.TimeoutExpired:
            return f"the test of the sandbox takes longer than {_PATIENCE:g} s"
    if done.returncode == 0:
        return None
    return " ".join((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1].split())


def check(settings: Settings) -> None:
    """Raise ServingError if jobs cannot be isolated."""
    found = trouble(settings)
    if found is not None:
        raise ServingError(f"{CODE}: jobs of a server for a team must be isolated, but {found}; {CURE}")


def main() -> int:
    """Make a sandbox with the mounts of standard input, and with the folder of the argument as TMPDIR. Return the exit
    code."""
    from local_backend.runtime.sandbox import SandboxError, probe

    try:
        probe(json.load(sys.stdin), Path(sys.argv[1]))
    except SandboxError as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0
