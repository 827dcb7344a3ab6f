"""Fetches many files, and large files in parts, with several threads. Memory does not grow with the data."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

from local_backend.data.errors import DataChanged, DataUnavailable
from local_backend.data.kinds.base import FileFamily
from local_backend.data.model import Meter
from local_backend.data.parts import Arriving, Journal, Whole

#: Threads that read at once. On a fast network more threads do not help; a slow network is full with these.
_THREADS = 10
#: Attempts in a row for a part without a received byte; then the server counts as down.
_ATTEMPTS = 4
_PAUSE_S = 0.25
_LOOK_S = 0.3


class Fetch:
    """Fetches files through a family. A file that fails stops the others; the journal keeps the parts that have
    arrived."""

    def __init__(self, family: FileFamily, files: Sequence[Arriving], journal: Journal, meter: Meter) -> None:
        self._family, self._files, self._journal, self._meter = family, files, journal, meter
        self.whole: dict[int, Whole] = {}
        self._tasks = self._all_tasks()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._problem: BaseException | None = None
        self._working = 0

    def run(self) -> None:
        """Fetch all files. Raises DataError, OSError (the disk), and Cancelled at once, whatever the server does."""
        count = min(_THREADS, sum(len(file.parts) for file in self._files))
        # Daemon threads end with the process: a thread that waits for a server must not delay that.
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(count)]
        self._working = count
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive() and not self._stop.is_set():
                    thread.join(_LOOK_S)
                    self._meter.check()
        finally:
            self._stop.set()
        if self._problem is not None:
            raise self._problem

    def _all_tasks(self) -> Iterator[tuple[Arriving, int]]:
        for file in self._files:
            for part in range(len(file.parts)):
                if part not in file.done:
                    yield file, part

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                with self._lock:
                    task = next(self._tasks, None)
                if task is None:
                    return
                self._bring(*task)
        except BaseException as problem:
            with self._lock:
                if self._problem is None and not self._stop.is_set():
                    self._problem = problem
            self._stop.set()
        finally:
            with self._lock:
                self._working -= 1
                last = self._working == 0
            for file in self._files if last else ():
                file.close()

    def _bring(self, file: Arriving, part: int) -> None:
        hashed = self._fill(file, part)
        if hashed is None:
            return
        self._journal.part(file, part)
        if file.add(part, hashed if len(file.parts) == 1 else None):
            self.finish(file)

    def finish(self, file: Arriving) -> None:
        """Finish a file whose parts have all arrived."""
        self._confirm(file)
        if self._stop.is_set():  # a later attempt may already work on this file
            return
        found = file.finish()
        self._journal.whole(file.number, found)
        self.whole[file.number] = found
        self._meter.advance(0, 1)

    def _confirm(self, file: Arriving) -> None:
        """Let the family check that all parts belong to one file, with as many attempts as for a part."""
        for failures in range(1, _ATTEMPTS + 1):
            try:
                return self._family.confirm(file.entry)
            except DataChanged:
                raise
            except DataUnavailable:
                if failures == _ATTEMPTS:
                    raise
                self._stop.wait(_PAUSE_S * 2 ** failures)

    def _fill(self, file: Arriving, part: int) -> Any:
        """Write one part. After a broken connection continue at the break, or, if the server gives no ranges, from the
        start. Return the checksum, which counts only for a single part; None when the fetch was stopped."""
        start, end = file.parts[part]
        at, failures, fd, hashed = start, 0, file.open(), hashlib.sha256()
        while end is None or at < end:
            before = at
            try:
                for piece in self._pieces(file, at, end):
                    if self._stop.is_set():
                        return None
                    _write(fd, piece, at)
                    if len(file.parts) == 1:
                        hashed.update(piece)
                    at += len(piece)
                    self._meter.advance(len(piece))
                if at < (file.entry.size or 0 if end is None else end):
                    raise DataUnavailable(f"{file.entry.path}: the connection broke at byte {at:,}")
                break
            except DataChanged:
                raise
            except DataUnavailable:
                failures = 1 if at > before and end is not None else failures + 1
                if failures >= _ATTEMPTS or end is None:
                    self._meter.advance(start - at)
                if failures >= _ATTEMPTS:
                    raise
                if end is None:
                    at, hashed = start, hashlib.sha256()
                    os.ftruncate(fd, start)
                self._stop.wait(_PAUSE_S * 2 ** failures)
        return hashed

    def _pieces(self, file: Arriving, start: int, end: int | None) -> Iterator[bytes]:
        """Yield the bytes that the family reads. Raises DataChanged when these are more bytes than the file had."""
        reading = self._family.read(file.entry, start, end)
        end = file.entry.size if end is None else end
        with closing(reading):
            for piece in reading:
                if end is not None and start + len(piece) > end:
                    raise DataChanged(f"{file.entry.path} is longer than when it was listed")
                yield piece
                start += len(piece)


def _write(fd: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(fd, view, at)
        view, at = view[count:], at + count
