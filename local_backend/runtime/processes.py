"""Operations on processes beyond the standard library: Linux interfaces where available, otherwise psutil."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import signal
import threading
from pathlib import Path

import psutil

from local_backend.own_process import LINUX, given, prctl
from local_backend.runtime.launch import ProcessId

#: Variable in the environment of every process of an exec: it identifies leftovers when the runner is gone.
MARK = "DLI_RUN_MARK"
MARK_LENGTH = 32
#: Variables that a process must be started with so that `stamp` can overwrite them.
PLACEHOLDERS = {MARK: "0" * MARK_LENGTH}

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_MADV_DONTNEED = 4
#: The parent of a process whose parent is outside of its PID namespace.
_OUTSIDE = 0
#: Errors of kernels and sandboxes without pidfds.
_NO_PIDFDS = frozenset({errno.ENOSYS, errno.EPERM, errno.EACCES, errno.EINVAL})


def mark_of(state: Path) -> str:
    """Return the value of MARK for the exec with this state directory."""
    return hashlib.sha256(os.fsencode(state)).hexdigest()[:MARK_LENGTH]


def start_time(pid: int) -> float | None:
    """Return the start time of a process, on a clock that cannot be set. Return None if the process is gone or a
    zombie. Raises OSError when the system cannot tell, for example because no descriptor is free."""
    if not LINUX:
        try:
            return psutil.Process(pid).create_time()
        except psutil.Error:
            return None
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # The first thread of a process may end before the others.
    return None if fields[0] in (b"Z", b"X") and int(fields[17]) <= 1 else float(fields[19])


def identify(pid: int) -> ProcessId:
    """Return the identity of a living process. Raises ProcessLookupError."""
    began = start_time(pid)
    if began is None:
        raise ProcessLookupError(pid)
    return ProcessId(pid, began)


def alive(process: ProcessId) -> bool:
    """Return whether exactly this process lives and is not a zombie."""
    return start_time(process.pid) == process.start_time


def watch(process: ProcessId) -> int | None:
    """Return a descriptor that becomes readable when the process ends; None if it has already ended. Raises OSError
    when no descriptor is free."""
    if hasattr(os, "pidfd_open"):
        try:
            fd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            return None
        except OSError as problem:
            if problem.errno not in _NO_PIDFDS:
                raise
            return _watch_by_thread(process)
        lives = False
        try:
            lives = alive(process)
        finally:
            if not lives:
                os.close(fd)
        return fd if lives else None
    return _watch_by_thread(process)


def _watch_by_thread(process: ProcessId) -> int | None:
    if not alive(process):
        return None
    reader, writer = os.pipe()

    def wait() -> None:
        try:
            psutil.Process(process.pid).wait()
        except psutil.Error:
            pass
        os.close(writer)

    threading.Thread(target=wait, name=f"watch-{process.pid}", daemon=True).start()
    return reader


def send_signal(process: ProcessId, number: int) -> None:
    """Send a signal to exactly this process; do nothing if it is gone."""
    try:
        if alive(process):
            os.kill(process.pid, number)
    except ProcessLookupError:
        return


def become_subreaper() -> None:
    """Make this process the parent of every descendant whose own parent dies."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Have the system kill this process when its parent ends. Exit at once if the parent has already ended."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() not in (parent, _OUTSIDE):
        os._exit(1)


def stamp(variable: str, value: str) -> None:
    """Write `value` over the placeholder of `variable` in the environment block that this process was started with.

    A forked process shows its ancestor's block in /proc/<pid>/environ, independent of os.environ. The memory of the
    block is its own copy.
    """
    if not LINUX:
        return
    begin, old = given(variable)
    if len(value) == len(old) == len(PLACEHOLDERS[variable]):
        ctypes.memmove(begin, value.encode(), len(value))


def return_memory() -> None:
    """Return unused malloc memory to the system, and drop clean pages of mapped files.

    These pages stay in the page cache. A later access maps them again; until then they count for no process.
    """
    if not LINUX:
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for begin, size in _clean_file_mappings():
        libc.madvise(begin, size, _MADV_DONTNEED)


def _clean_file_mappings() -> list[tuple[int, int]]:
    """Return (address, size) of the read-only file mappings without private pages: dropping those loses nothing."""
    found: list[tuple[int, int]] = []
    span: tuple[int, int] | None = None
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace").splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            begin, end = (int(text, 16) for text in words[0].split("-"))
            is_file = len(words) > 5 and words[5].startswith("/")
            span = (begin, end - begin) if is_file and "w" not in words[1] else None
        elif words[0] == "Anonymous:" and words[1] == "0" and span is not None:
            found.append(span)
    return found
