"""A host process that imports the libraries of the client and forks commands; `commands` starts it.

With the argument `servers` it also imports those of the server, and a client forks the server that it starts. A server
with connections to `module_host` gets its runners and its nursery from there.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import pkgutil
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import fork_host
from forking import Link, fork_modules

import dlicmd.cli
import dlicmd.dlim
from dlicmd.sdk import backend

_codes: list[int] = []
_modules: dict[str, Link] = {}
_Popen = subprocess.Popen

#: Libraries that the client imports when it needs them. Its own modules read no environment when they are imported.
LIBRARIES = (
    "concurrent.futures", "http.client", "jsonschema", "pathspec", "platformdirs", "requests", "rich.console",
    "rich.live", "rich.progress", "rich.table", "rich.text", "rich.tree", "ssl", "subprocess", "tarfile", "tempfile",
    "urllib.request", "uuid", "yaml", "zipfile", "local_backend.cli",
)
#: Modules of the server, whose import takes most of the time of its start.
OF_SERVERS = (
    "local_backend.api.app", "local_backend.console.site", "local_backend.runtime.local_launcher",
    "local_backend.runtime.supervisor", "local_backend.serving.server", "local_backend.serving.web_server",
)
#: Descriptor of the first connection to a `module_host`, in commands and servers that have one.
_LINKS = 3


@atexit.register
def _leave() -> None:
    """End a command after all other exit handlers ran, but do not destroy the many modules one by one."""
    if _codes:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_codes[0])


class Run(BaseException):
    """Raised in a forked child: leave the host and run this command."""

    def __init__(self, program: str) -> None:
        super().__init__()
        self.program = program


class ForkedServer:
    """A server that its client forks, in place of `subprocess.Popen` with the same arguments."""

    def __init__(
        self, command: list[str], *, stdin: int, stdout: Any, stderr: Any, cwd: Path, env: dict[str, str],
        start_new_session: bool,
    ) -> None:
        assert stdin == subprocess.DEVNULL and start_new_session
        self.returncode: int | None = None
        self.pid = os.fork()
        if not self.pid:
            nothing = os.open(os.devnull, os.O_RDONLY)
            links = [link.fileno() for link in _modules.values()]
            take_over(command[3:], env, cwd, [nothing, stdout.fileno(), stderr.fileno(), *links])
            _serve()

    def poll(self) -> int | None:
        """Return the exit code, None while the server runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


def _serve() -> None:
    """Be a server until it ends. What the client has not yet written stays in its own streams."""
    subprocess.Popen = _Popen  # type: ignore[misc]
    del sys.path[0]
    sys.stdout, sys.stderr = (os.fdopen(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))
    try:
        importlib.import_module("local_backend.cli").main()
    except SystemExit as ended:
        _codes.append(ended.code if isinstance(ended.code, int) else int(ended.code is not None))
    except BaseException:
        traceback.print_exc()
    finally:
        _codes.append(1)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()


def _forks_servers() -> None:
    launch = backend._launch

    def forked(place: Path) -> Any:
        with mock.patch("subprocess.Popen", ForkedServer):
            return launch(place)

    backend._launch = forked


def _share_a_key() -> None:
    """Give one key to all forked servers: each search for one takes 0.1 s. The id of a key is made by each server, so a
    token is still valid for one server only."""
    from local_backend import signing

    key = signing.generate_private_key(65537, signing._BITS)
    signing.generate_private_key = lambda *_: key


def _fork_modules(modules: Sequence[str]) -> None:
    """Let a server of this process get its runners, and perhaps its nursery, from the connections after its streams."""
    global _modules
    _modules = {module: Link(socket.socket(fileno=_LINKS + number)) for number, module in enumerate(modules)}
    fork_modules({module: partial(_modules.__getitem__, module) for module in modules})


def begin(request: dict[str, Any], descriptors: list[int]) -> None:
    """In a forked child: take over the arguments, environment and folder of the request."""
    words = [os.fsdecode(word.encode("latin-1")) for word in request["words"]]
    take_over(words, request["environment"], request["folder"], descriptors, request.get("modules", []))
    raise Run(request["program"])


def take_over(
    words: list[str], environment: dict[str, str], folder: str | Path, descriptors: list[int],
    modules: Sequence[str] = (),
) -> None:
    """Take over arguments, environment, folder and standard streams, as a new process has them. The descriptors after
    these streams are the connections to hosts of `modules`."""
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    os.closerange(len(descriptors), os.sysconf("SC_OPEN_MAX"))
    if modules:
        _fork_modules(modules)
    os.setsid()
    import signal

    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    os.chdir(folder)
    folders = environment["PYTHONPATH"].split(os.pathsep) if "PYTHONPATH" in environment else []
    sys.path[1:1] = [one for one in folders if one not in sys.path]
    sys.argv[:] = ["-c", *words]


def main() -> None:
    """Import the modules, then fork a child for every request."""
    own = (module.name for package in (dlicmd.cli, dlicmd.dlim)
           for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."))
    for name in (*LIBRARIES, *(name for name in own if not name.endswith("__main__"))):
        importlib.import_module(name)
    if "servers" in sys.argv:
        for name in OF_SERVERS:
            importlib.import_module(name)
        _share_a_key()
        _forks_servers()
    gc.collect()
    gc.freeze()
    try:
        fork_host.serve(begin)
    except Run as found:
        program = found.program
    else:
        return
    sys.path[0] = ""
    try:
        code = importlib.import_module(program).main()
    except SystemExit as ended:
        code = ended.code
    if isinstance(code, int | None):
        _codes.append(code or 0)
    sys.exit(code)


if __name__ == "__main__":
    main()
