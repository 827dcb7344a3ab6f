"""Third-party servers that tests start as processes.

This module finds their ports, waits until they answer, and reports their last output or a missing program.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from support import PATIENCE, eventually

#: Java packages that libraries from the time of Java 8 access by reflection.
_OPENED = ("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util",
           "java.util.concurrent", "java.util.concurrent.atomic", "sun.nio.ch", "sun.nio.cs", "sun.security.action",
           "sun.util.calendar")


class NotThere(Exception):
    """The server is not available here; the text says what is missing."""


def free_port() -> int:
    """Return a port that no process listens on. It is below those that systems give to connections and to port 0, so
    no other process gets it by chance until the server binds it."""
    while True:
        port = 20000 + secrets.randbelow(12000)
        with socket.socket() as asked, contextlib.suppress(OSError):
            asked.bind(("127.0.0.1", port))
            return port


def listens(port: int) -> bool:
    """Return whether a process listens on the port."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@contextlib.contextmanager
def running(command: Sequence[str | Path], answers: Callable[[], object], folder: Path) -> Iterator[None]:
    """Start a process, wait until it answers, and kill it afterwards.

    Raises NotThere with the end of its output if the process ends before it answers.
    """
    log = folder / f"{Path(command[0]).name}-{len(list(folder.iterdir()))}.log"
    with log.open("wb") as said:
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
    try:
        eventually(lambda: process.poll() is not None or answers(), f"{command[0]} answers")
        if process.poll() is not None:
            raise NotThere(f"{command[0]} does not run: {log.read_text(errors='replace')[-1000:]}")
        yield
    finally:
        process.kill()
        process.wait(PATIENCE)


def java(jars: Sequence[str | Path], *more: str) -> list[str]:
    """Return the first words of a Java command. Raises NotThere."""
    program = shutil.which("java")
    if program is None:
        raise NotThere("java is not on PATH")
    return [program, "-Dfile.encoding=UTF-8", "-Dsun.jnu.encoding=UTF-8",
            *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED), *more,
            "-cp", os.pathsep.join(map(str, jars))]


def jars(variable: str, needed: str) -> Path:
    """Return the folder named by an environment variable, if it has a file `needed`. Raises NotThere."""
    folder = Path(os.environ.get(variable) or os.devnull)
    if not any(folder.glob(needed)):
        raise NotThere(f"{variable} names no folder with {needed} (see docs/dependencies.md)")
    return folder
