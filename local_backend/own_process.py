"""What this process shows of itself to other processes, and when the system may end it. Linux only; elsewhere the
functions do nothing more than the standard library can."""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

LINUX = sys.platform == "linux"
#: Scores of `may_be_killed`: when memory runs out, the system ends a process of a job first, then a runner or the
#: nursery, and the server last.
RUNNER_SCORE, JOB_SCORE = 200, 500
#: How much lower the priority of a job in a sandbox is (see nice(2)).
NICE = 5
_PR_SET_DUMPABLE = 4


def prctl(option: int, argument: object) -> None:
    """Make the system call of this name, where it exists."""
    if LINUX:
        ctypes.CDLL(None).prctl(option, argument, 0, 0, 0)


def hide(hidden: bool = True) -> None:
    """Hide the memory, the environment and the open files of this process from all other processes without privileges,
    and let the system write no core dump of it. With `hidden` false, undo this. A forked child inherits it, another
    program does not."""
    prctl(_PR_SET_DUMPABLE, 0 if hidden else 1)


@contextmanager
def unchangeable(program: str) -> Iterator[tuple[str, Sequence[int]]]:
    """Yield a file to execute `program` from, and the descriptors that the new process must inherit for this.

    A job in a sandbox reaches the file of each process in it by /proc/<pid>/exe, also if the file is outside and to
    read only. If this account owns the file, the job could change its mode. Then the process runs a copy in memory,
    unless the copy does not start: a system can forbid it, and a Python may need the libraries beside its file.
    Raises OSError.
    """
    file: tuple[str, Sequence[int]] = (program, ())
    with ExitStack() as held:
        if LINUX and os.stat(program).st_uid == os.geteuid():
            with suppress(OSError):
                readable = held.enter_context(_copied(program))
                copy = (f"/proc/self/fd/{readable}", (readable,))
                file = copy if _starts(*copy) else file
        yield file


def _starts(file: str, needed: Sequence[int]) -> bool:
    """Return whether a program can start from a file. Both Python and bubblewrap have the option. Raises OSError."""
    tried = subprocess.run([file, "--version"], pass_fds=needed, env={}, stdin=subprocess.DEVNULL,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return tried.returncode == 0


@contextmanager
def _copied(program: str) -> Iterator[int]:
    """Yield a descriptor of a sealed copy of a file in memory. Raises OSError."""
    copy = os.memfd_create("program", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with os.fdopen(copy, "wb") as target:
        with open(program, "rb") as source:
            shutil.copyfileobj(source, target)
        target.flush()
        fcntl.fcntl(copy, fcntl.F_ADD_SEALS,
                    fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        # A file that is open for writing cannot be executed.
        readable = os.open(f"/proc/self/fd/{copy}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield readable
    finally:
        os.close(readable)


def may_be_killed(score: int) -> None:
    """When memory runs out, let the system kill this process before those with a lower `score`. Children inherit it.
    The score of a process only grows here. Where the system does not permit a change, nothing happens."""
    path = Path("/proc/self/oom_score_adj")
    with suppress(OSError, ValueError):
        if int(path.read_text(encoding="ascii")) < score:
            path.write_text(str(score), encoding="ascii")


def give_way() -> None:
    """Lower the priority of this process and its later children: the server, whose calls are short, gets a processor
    before jobs that use all of them."""
    with suppress(OSError):
        os.nice(NICE)


def take(variable: str) -> str | None:
    """Remove a variable from the environment of this process, and its value from /proc/<pid>/environ. Return the value;
    None if it is not set."""
    value = os.environ.pop(variable, None)
    if value is not None and LINUX:
        begin, old = given(variable)
        ctypes.memset(begin, 0, len(old))
    return value


def given(variable: str) -> tuple[int, bytes]:
    """Return the address and the value of a variable in the environment block that this process was started with. The
    value is empty if the block does not have it."""
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    begin, end = int(fields[47]), int(fields[48])
    block = b"\0" + ctypes.string_at(begin, end - begin)
    at = block.find(f"\0{variable}=".encode())
    if at < 0:
        return begin, b""
    at += len(variable) + 2
    return begin + at - 1, block[at : block.index(b"\0", at)]
