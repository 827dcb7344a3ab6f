"""Unpacks archives (unpacker.py) in processes of their own, each with limits and a deadline."""

from __future__ import annotations

import os
from pathlib import Path

from local_backend import limited_work
from local_backend.errors import Invalid, StorageFailed
from local_backend.limited_work import LimitExceeded, WorkLimits
from local_backend.settings import Limits
from local_backend.submit import unpacker

#: Seconds of wall time beyond the CPU limit, for a slow disk.
_SLACK = 30


def unpack(archive: Path, target: Path, limits: Limits) -> None:
    """Unpack `archive` into the existing, empty folder `target`. The content is durable when this returns.

    Files that were written before an error stay: the caller removes the folder.

    Raises:
        Invalid: the archive is refused.
        StorageFailed: the disk is full or refuses writes.
    """
    bounds = {"bytes": limits.unpacked_bytes, "files": limits.unpacked_files, "ratio": limits.unpack_ratio}
    kernel = WorkLimits(limits.unpack_seconds, limits.unpack_memory, limits.unpacked_bytes)
    try:
        code, text = limited_work.call(
            f"{unpacker.__name__}:{unpacker.run.__name__}", [str(archive), str(target), bounds], kernel, _SLACK)
    except LimitExceeded:
        raise _refused(f"unpacking takes more than {limits.unpack_seconds} seconds or too much memory") from None
    except OSError as problem:
        raise StorageFailed.from_os(problem) from None
    if code == unpacker.REFUSED:
        raise _refused(text)
    if code != unpacker.DONE:
        raise StorageFailed.from_os(_os_error(int(text)))


def _refused(why: str) -> Invalid:
    return Invalid("submission.archive", f"the archive is refused: {why}")


def _os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
