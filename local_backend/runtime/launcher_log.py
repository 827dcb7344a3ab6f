"""launcher.log of an exec: the actions of the platform for the job, one line per fact."""

from __future__ import annotations

import os
import time
from pathlib import Path

from local_backend.files import is_plain

#: Maximum bytes of a log with lines that a program can cause without end.
MOST = 8 << 20


def note(path: Path, who: str, text: str, level: str = "INFO", *, bounded: bool = False) -> None:
    """Append one line; several processes may do so at once. Never fails: if the log cannot be written, or the job has
    replaced it with something else, the line is lost. With `bounded`, the line is also lost if the log has MOST
    bytes."""
    now = time.time()
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
    line = f"{stamp},{int(now % 1 * 1000):03d} {level} {who}: {one_line(text, 4000)}\n"
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(path, flags, 0o600)
    except OSError:
        return
    try:
        if not is_plain(fd):
            return
        content, size = line.encode(errors="replace"), os.fstat(fd).st_size
        if not bounded or size + len(content) < MOST:
            os.write(fd, content)
        elif size < MOST:
            os.write(fd, b"(the log is full: further lines of the runner are missing)".ljust(MOST - size - 1) + b"\n")
    except OSError:
        return  # the disk is full: lose the line, not the job
    finally:
        os.close(fd)


def one_line(text: str, limit: int = 500) -> str:
    """Return text that fits into one line of a log or a table: no control characters, at most `limit` characters."""
    clean = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"
