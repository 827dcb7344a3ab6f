"""Full disks: which errors mean one, and how much space is missing."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import torch

#: Errors of a full disk, of a used up quota, and of a limit on the size of files.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def is_full(error: OSError) -> bool:
    """Return whether a file could not be written because space is missing."""
    return error.errno in _FULL


def check_space(folder: Path, needed: int) -> None:
    """Raise OSError if the disk of an existing folder has fewer than `needed` bytes free."""
    if free_bytes(folder) < needed:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def free_bytes(folder: Path) -> int:
    """Return the bytes that this user can still write on the disk of a folder. Raises OSError."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def why(error: OSError, folder: Path, needed: int) -> str:
    """Return why a file of `needed` bytes could not be written. For a full disk, name it and the missing bytes."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return error.strerror or str(error)
    place = folder.absolute()
    while not os.path.ismount(place):
        place = place.parent
    try:
        free = free_bytes(place)
    except OSError:
        return error.strerror or str(error)
    if free >= needed:
        return f"the disk or the quota of {place} is full"
    missing = _mib(needed - free)
    return f"the disk {place} is full: {_mib(needed)} are needed and {_mib(free)} are free; free {missing} more"


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


def size_of(value: Any) -> int:
    """Return the bytes of all tensors in a state dict."""
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, dict):
        return sum(map(size_of, value.values()))
    return sum(map(size_of, value)) if isinstance(value, (list, tuple)) else 0
