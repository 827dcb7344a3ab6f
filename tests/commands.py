"""Runs commands of the product as separate processes, forked from a process that has imported their libraries."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from forking import NURSERY, RUNNER, Forked, Host

from local_backend.runtime.environment import FIXED_HASH_SEED, HASH_SEED, acts_at_start, inherited
from local_backend.runtime.processes import PLACEHOLDERS

#: An interpreter reads variables with these prefixes only at its start, so a forked process cannot change them.
_OF_INTERPRETERS = ("PYTHON", "LC_", "LANG", "MALLOC_", "LD_")


def run(  # noqa: PLR0917
    program: str, words: tuple[str | bytes, ...], environment: dict[str, str], folder: Path, timeout: float,
    given: bytes | None = None, *, servers: bool = False, nurseries: bool = False,
) -> tuple[int, bytes, bytes]:
    """Run `program`.main() with the arguments `words` until it ends; return exit code, standard output, standard error.

    `given` is the standard input. With `servers`, a server that the command starts is forked, too, and with
    `nurseries` also its nursery.
    Raises subprocess.TimeoutExpired if it kills the process after `timeout` s.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        reader = _input(given)
        try:
            process = start(program, words, environment, folder, [reader, out.fileno(), err.fileno()], servers=servers,
                            nurseries=nurseries)
        finally:
            os.close(reader)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout)
            raise
        out.seek(0)
        err.seek(0)
        assert process.returncode is not None
        return process.returncode, out.read(), err.read()


def start(
    program: str, words: Sequence[str | bytes], environment: dict[str, str], folder: Path, streams: Sequence[int], *,
    servers: bool, nurseries: bool = False,
) -> Forked | subprocess.Popen[bytes]:
    """Start `program`.main() with the arguments `words` and copies of three standard streams, and return its process.

    With `servers` the process has imported the modules of the server, and its runners are forked, if its environment
    allows this. With `nurseries` its nursery is forked, too.
    """
    if _needs_interpreter(environment, servers):
        call = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); " \
               f"from {program} import main; sys.exit(main())"
        reader, out, err = streams
        return subprocess.Popen([sys.executable, "-c", call, *words], cwd=folder, env=environment, stdin=reader,
                                stdout=out, stderr=err)
    request: dict[str, Any] = {
        "program": program, "words": [os.fsencode(word).decode("latin-1") for word in words],
        "environment": environment, "folder": str(folder),
    }
    if servers and not acts_at_start({name for name, _ in environment.items() ^ os.environ.items()}):
        request["modules"] = [RUNNER, NURSERY] if nurseries else [RUNNER]
        streams = [*streams, *(module_host(module).fileno() for module in request["modules"])]
    return _host(servers).start(request, streams)


class Started:
    """A started command with pipes for its output, with the interface of `subprocess.Popen`. It may be a server."""

    def __init__(
        self, program: str, words: Sequence[str], environment: dict[str, str], folder: Path, *, nurseries: bool = False,
    ) -> None:
        (from_out, out), (from_err, err) = os.pipe(), os.pipe()
        self.stdout, self.stderr = os.fdopen(from_out, encoding="utf-8"), os.fdopen(from_err, encoding="utf-8")
        with open(os.devnull) as nothing, open(out) as out_file, open(err) as err_file:
            streams = [one.fileno() for one in (nothing, out_file, err_file)]
            self._process = start(program, words, environment, folder, streams, servers=True, nurseries=nurseries)
        self.pid = self._process.pid
        self.poll, self.wait, self.send_signal = self._process.poll, self._process.wait, self._process.send_signal
        self._texts = ("", "")

    @property
    def returncode(self) -> int | None:
        """The exit code; None before a call of `wait` or `poll` has seen the end."""
        return self._process.returncode

    def terminate(self) -> None:
        """Send SIGTERM, unless the process has ended."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process, unless it has ended."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Wait for the end, and return the output that was not read before."""
        if not self.stdout.closed:
            with self.stdout, self.stderr, ThreadPoolExecutor(2) as pool:
                out, err = pool.submit(self.stdout.read), pool.submit(self.stderr.read)
                self._texts = out.result(timeout), err.result(timeout)
        self.wait(timeout)
        return self._texts


def _needs_interpreter(environment: dict[str, str], servers: bool) -> bool:
    """Return whether only a new interpreter has this environment. With `servers`, a forked process adds the folders of
    PYTHONPATH to its path."""
    differing = {name for name, value in environment.items() ^ os.environ.items() if name.startswith(_OF_INTERPRETERS)}
    if not servers or differing != {"PYTHONPATH"}:
        return bool(differing)
    folders = environment.get("PYTHONPATH", "").split(os.pathsep)
    return any(Path(folder, "sitecustomize.py").exists() for folder in folders)


def _input(given: bytes | None) -> int:
    """Return a file descriptor from which `given` can be read, as a pipe."""
    if given is None:
        return os.open(os.devnull, os.O_RDONLY)
    reader, writer = os.pipe()

    def write() -> None:
        try:
            with os.fdopen(writer, "wb") as file:
                file.write(given)
        except BrokenPipeError:
            pass  # the command ended before it read all of the input

    threading.Thread(target=write, daemon=True).start()
    return reader


@cache
def _host(servers: bool) -> Host:
    """Start the host process with the first command; it ends when this process ends."""
    return Host(Path(__file__).parent / "commands_host.py", *(["servers"] if servers else []))


@cache
def module_host(module: str) -> Host:
    """Start the process that forks processes of a module, with the environment that a server gives to them."""
    environment = inherited(os.environ) | PLACEHOLDERS
    if module == NURSERY:
        environment |= {HASH_SEED: FIXED_HASH_SEED, "OPENBLAS_NUM_THREADS": "1"}
    return Host(Path(__file__).parent / "module_host.py", module, **environment)
