"""Shortens the output files of processes that run without end, such as kernels.

The process appends to its file, so the file may be cut while it is open: further output follows the rest.
"""

from __future__ import annotations

import os
from pathlib import Path

from local_backend.files import is_plain

#: Bytes from which a file is shortened, and that stay of it.
MOST, KEPT = 64 << 20, 1 << 20
NOTE = b"[earlier output was removed]\n"


def shorten(path: Path, most: int = MOST, kept: int = KEPT) -> bool:
    """Remove the beginning of a file that has more than `most` bytes, and keep whole lines of its last `kept` bytes.
    Return whether the file was shortened. Output that is written at this moment may be lost. Raises OSError."""
    try:
        if path.lstat().st_size <= most:
            return False
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    with open(fd, "rb+", buffering=0) as file:
        if not is_plain(fd):
            return False
        file.seek(-kept, os.SEEK_END)
        rest = file.read(kept)
        file.truncate(0)
        file.write(NOTE + rest[rest.find(b"\n") + 1:])
    return True
