"""Forks scripts and workers with PyTorch imported, as the backend's nursery does; `warm_script` starts it."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[0] = str(HERE.parent)

import fork_host  # noqa: E402

from local_backend.runtime import nursery  # noqa: E402
from local_backend.runtime.program import Become, Function, Interpreter, Script, follow  # noqa: E402
from local_backend.runtime.tasks import ENGINE_WORKER, close_all_but, reset_signals  # noqa: E402
from local_backend.runtime.user_python import UserPython  # noqa: E402

_codes: list[int] = []


@atexit.register
def _leave() -> None:
    """End a script after all other exit handlers ran. To destroy PyTorch takes ten times as long as to fork it."""
    if _codes:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_codes[0])


def serve() -> None:
    """Import PyTorch, then fork for every request."""
    nursery._preload()
    folder = tempfile.mkdtemp()
    python = UserPython(Path(folder))
    python.make()
    fork_host.serve(partial(become, python))
    shutil.rmtree(folder)  # not in a forked child, which leaves `serve` with an exception


def become(python: UserPython, request: dict[str, Any], channel: list[int]) -> None:
    """Set up a forked child, then replace its program by the script, or by a worker if there is none."""
    environment = dict(request["environment"])
    close_all_but(channel[0] if channel else None)
    reset_signals()
    for descriptor in channel:
        os.set_inheritable(descriptor, True)
        environment["DLI_RUNNER_FD"] = str(descriptor)
    for number, path in ((1, request["stdout"]), (2, request["stderr"])):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["folder"])
    base_path = tuple(sys.path[1:])
    fresh = Interpreter(environment, base_path, python)
    if request["main"] is None:
        raise Become(Function(fresh, ENGINE_WORKER, request["folder"]))
    raise Become(Script(fresh, request["main"], tuple(request["arguments"])))


if __name__ == "__main__":
    try:
        follow(serve)
    except SystemExit as ended:
        if isinstance(ended.code, int | None):
            _codes.append(ended.code or 0)
        raise
    else:
        _codes.append(0)
