"""launcher.log of an exec: the actions of the platform for the job, one line per fact."""

from __future__ import annotations

import os
import time
from pathlib import Path

from local_backend.files import is_plain


def note(path: Path, who: str, text: str, level: str = "INFO") -> None:
    """Append one line; several processes may do so at once. Never fails: if the log cannot be written, or the job has
    replaced it with something else, the line is lost."""
    now = time.time()
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
    line = f"{stamp},{int(now % 1 * 1000):03d} {level} {who}: {one_line(text, 4000)}\n"
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(path, flags, 0o600)
    except OSError:
        return
    try:
        if is_plain(fd):
            os.write(fd, line.encode(errors="replace"))
    except OSError:
        return  # the disk is full: lose the line, not the job
    finally:
        os.close(fd)


def one_line(text: str, limit: int = 500) -> str:
    """Return text that fits into one line of a log or a table: no control characters, at most `limit` characters."""
    clean = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"
