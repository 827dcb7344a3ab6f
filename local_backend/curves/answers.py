"""The curves of an exec as a JSON object for clients.

A process of its own reads a large file, with a low priority: the server answers other calls meanwhile. The last answers
are kept for as long as their files do not change.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Collection
from typing import BinaryIO

from local_backend import interpreter
from local_backend.curves.file import read

#: Maximum bytes of a file that the server reads itself, and of all kept answers.
_SMALL, _KEPT = 256 << 10, 16 << 20
#: Maximum seconds of the process.
_PATIENCE = 120.0
_NICE = 10

Key = tuple[object, ...]


class CurveAnswers:
    """Makes answers, and keeps the last ones."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: OrderedDict[Key, bytes] = OrderedDict()

    def of(self, file: BinaryIO | None, since: str, metrics: Collection[str]) -> bytes:
        """Return the answer for a file, which is then closed; None for a missing file. Raises OSError."""
        if file is None:
            return _object([], "", True)
        with file:
            found = os.fstat(file.fileno())
            if found.st_size <= _SMALL:
                return _answer(file, since, metrics)
            key = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, since, *metrics)
            with self._lock:
                known = self._answers.get(key)
            if known is None:
                known = _by_process(file, since, metrics)
                self._keep(key, known)
            return known

    def _keep(self, key: Key, answer: bytes) -> None:
        with self._lock:
            self._answers[key] = answer
            while sum(map(len, self._answers.values())) > _KEPT:
                self._answers.popitem(last=False)


def _by_process(file: BinaryIO, since: str, metrics: Collection[str]) -> bytes:
    """Return the answer from another process. Raises OSError."""
    try:
        done = subprocess.run(
            interpreter.command(__name__, json.dumps([since, *metrics])), stdin=file, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, timeout=_PATIENCE, check=True, start_new_session=True, cwd="/",
        )
    except subprocess.SubprocessError as problem:
        raise OSError(None, f"the process that reads them failed: {type(problem).__name__}") from None
    return done.stdout


def _answer(file: BinaryIO, since: str, metrics: Collection[str]) -> bytes:
    return _object(*read(file, since, metrics))


def _object(curves: list[dict[str, object]], cursor: str, whole: bool) -> bytes:
    text = json.dumps({"curves": curves, "cursor": cursor, "whole": whole}, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="replace")


def main() -> None:
    """Answer for the file that is the standard input. The argument is a JSON list: cursor, then names of metrics."""
    os.nice(_NICE)
    since, *metrics = json.loads(sys.argv[1])
    sys.stdout.buffer.write(_answer(sys.stdin.buffer, since, metrics))

