"""The CPU load of running execs, from two readings of the CPU time that their processes used."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

#: Seconds that a load counts as new, and seconds after which a reading is too old to compute the present load from.
_NEW, _OLD = 1.0, 60.0


class CpuLoad:
    """The load between the last two calls. Call from any thread."""

    def __init__(self, read: Callable[[], Mapping[str, float]], clock: Callable[[], float] = time.monotonic) -> None:
        """`read` returns the CPU seconds that each exec used so far."""
        self._read, self._clock = read, clock
        self._lock = threading.Lock()
        self._at = -_OLD
        self._used: Mapping[str, float] = {}
        self._load: dict[str, float] = {}

    def now(self) -> dict[str, float]:
        """Return the mean number of busy cores of each exec since the call before. An exec that the call before did
        not see is left out."""
        with self._lock:
            passed = self._clock() - self._at
            if passed < _NEW:
                return self._load
            used = self._read()
            known = self._used if passed < _OLD else {}
            self._load = {name: max(0.0, seconds - known[name]) / passed for name, seconds in used.items()
                          if name in known}
            self._at, self._used = self._at + passed, used
            return self._load
