"""Runs the extractor (unpacker.py) in a child process with a deadline."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from local_backend.settings import Limits
from local_backend.submit import unpacker
from local_backend.submit.errors import BadSubmission, StorageFailed

#: Seconds of wall time beyond the CPU limit, for a slow disk.
_SLACK = 30


def unpack(archive: Path, target: Path, limits: Limits) -> None:
    """Unpack `archive` into the existing, empty folder `target`; its content is durable when this returns.

    What was written until a failure stays: the caller removes the folder.

    Raises:
        BadSubmission: the archive is refused.
        StorageFailed: the disk did not take it.
    """
    bounds = {
        "bytes": limits.unpacked_bytes,
        "files": limits.unpacked_files,
        "ratio": limits.unpack_ratio,
        "seconds": limits.unpack_seconds,
        "memory": limits.unpack_memory,
    }
    # By path, isolated and without site: starts in a few milliseconds, and nothing of the environment is imported.
    command = [sys.executable, "-I", "-S", unpacker.__file__, str(archive), str(target), json.dumps(bounds)]
    try:
        child = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=limits.unpack_seconds + _SLACK, check=False
        )
    except subprocess.TimeoutExpired:
        raise _refused(f"unpacking takes more than {limits.unpack_seconds} seconds") from None
    except OSError as problem:
        raise StorageFailed.from_os(problem) from None
    text = child.stdout.decode("utf-8", "replace")
    if child.returncode == unpacker.REFUSED:
        raise _refused(text)
    if child.returncode == unpacker.STORAGE:
        raise StorageFailed.from_os(_os_error(int(text)))
    if child.returncode in {-signal.SIGXCPU, -signal.SIGKILL}:
        raise _refused(f"unpacking takes more than {limits.unpack_seconds} seconds or too much memory")
    if child.returncode != unpacker.DONE:
        raise StorageFailed(f"the process that unpacks archives failed (exit code {child.returncode})")


def _refused(why: str) -> BadSubmission:
    return BadSubmission(f"the archive is refused: {why}")


def _os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
