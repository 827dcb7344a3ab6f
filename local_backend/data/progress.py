"""Progress and result of a delivery: bytes are counted, and reported in a sentence at short intervals."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

#: Seconds between two reports, and seconds over which the speed is measured.
_EVERY = 0.5
_WINDOW = 5.0
_UNITS = ("B", "kB", "MB", "GB", "TB")
#: Seconds between two checks whether a job still needs the data.
_SLICE_S = 0.2


@dataclass(frozen=True)
class Delivered:
    """Data that is completely on this machine."""

    path: Path
    files: int
    size: int
    #: Distinguishes this content from another of the same name (ETag, modification time, checksum); empty if unknown.
    version: str = ""


class FetchMeter(Protocol):
    """Records the progress of a delivery. Methods may be called from any thread.

    `check` raises Cancelled when no job needs the data any more. Code that fetches data calls `check` at least every
    second.
    """

    def expect(self, size: int | None, files: int | None = None) -> None:
        """Begin a delivery, or begin it anew, of `size` bytes and `files` files in all; None means unknown."""

    def resume(self, size: int, files: int = 0) -> None:
        """Record `size` bytes and `files` files that are already here from before."""

    def advance(self, size: int, files: int = 0) -> None:
        """Record `size` more bytes and `files` more files; negative for bytes that must be fetched again."""

    def say(self, text: str) -> None:
        """Show a short status until the next report, such as `comparing checksums`."""

    def check(self) -> None:
        """Raise Cancelled when no job needs the data any more."""


class Cancelled(Exception):
    """No job needs the data any more."""


class Gauge:
    """The Meter of a fetcher. `tell` gets each changed sentence, from any thread."""

    def __init__(self, tell: Callable[[str], None], wanted: Callable[[], bool] = lambda: True) -> None:
        """Set up a gauge that calls `wanted` at short intervals, to learn whether a job still needs the data."""
        self._tell, self._wanted = tell, wanted
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._cancelled = threading.Event()
        self._title = self._said = self._told = ""
        self._size: int | None = None
        self._done = 0
        #: Bytes that have arrived since the beginning, including bytes that had to be fetched again.
        self.arrived = 0
        self._seen = [(time.monotonic(), 0)]
        self._thread = threading.Thread(target=self._run, name="gauge", daemon=True)

    def start(self) -> None:
        """Start reporting."""
        self._thread.start()

    def close(self) -> None:
        """Stop reporting."""
        self._ending.set()
        self._thread.join()

    def begin(self, title: str) -> None:
        """Begin another delivery; `title` is its name, such as `s3://bucket/x`."""
        with self._lock:
            self._title, self._said, self._size, self._done = title, "", None, 0
        self.tell()

    def cancel(self) -> None:
        """Cancel the delivery: no job needs the data any more."""
        self._cancelled.set()

    def sleep(self, seconds: float) -> None:
        """Wait. Raises Cancelled."""
        end = time.monotonic() + seconds
        # Wait in slices: a signal that comes just before a wait does not interrupt the wait.
        while (left := end - time.monotonic()) > 0 and not self._cancelled.wait(min(left, _EVERY)):
            pass
        self.check()

    def expect(self, size: int | None, files: int | None = None) -> None:
        """See Meter."""
        with self._lock:
            self._size, self._done = size, 0

    def resume(self, size: int, files: int = 0) -> None:
        """See Meter."""
        with self._lock:
            self._done += size
            self._said = ""

    def advance(self, size: int, files: int = 0) -> None:
        """See Meter."""
        with self._lock:
            self._done += size
            self._said = ""
            self.arrived += max(0, size)

    def say(self, text: str) -> None:
        """See Meter."""
        with self._lock:
            self._said = text
        self.tell()

    def check(self) -> None:
        """See Meter."""
        if self._cancelled.is_set():
            raise Cancelled

    def tell(self) -> None:
        """Report now, if the sentence has changed."""
        text = self.sentence
        if text != self._told:
            self._told = text
            self._tell(text)

    @property
    def sentence(self) -> str:
        """The progress, such as `fetching s3://bucket/x: 41 % of 1.2 GB, 85 MB/s`."""
        with self._lock:
            if self._said not in ("", "fetching"):
                return f"fetching {self._title}: {self._said}"
            speed = self._speed()
            parts = []
            if self._size:
                parts.append(f"{min(100, 100 * self._done // self._size)} % of {shown(self._size)}")
            elif self._done:
                parts.append(shown(self._done))
            if speed is not None:
                parts.append(f"{shown(speed)}/s")
        return f"fetching {self._title}" + (f": {', '.join(parts)}" if parts else "")

    def _speed(self) -> float | None:
        now = time.monotonic()
        self._seen.append((now, self.arrived))
        while len(self._seen) > 2 and self._seen[1][0] < now - _WINDOW:
            self._seen.pop(0)
        passed, came = now - self._seen[0][0], self.arrived - self._seen[0][1]
        return came / passed if came > 0 and passed > 0 else None

    def _run(self) -> None:
        while not self._ending.wait(_EVERY):
            if not self._wanted():
                self.cancel()
            self.tell()


def shown(size: float) -> str:
    """Return a number of bytes as people read it, such as `1.2 GB`."""
    unit = 0
    while size >= 999.5 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.0f} {_UNITS[unit]}" if unit == 0 or size >= 9.95 else f"{size:.1f} {_UNITS[unit]}"


def pause(meter: FetchMeter, seconds: float = _SLICE_S) -> None:
    """Sleep in slices. Raises Cancelled."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        meter.check()
        time.sleep(min(_SLICE_S, left))
    meter.check()
