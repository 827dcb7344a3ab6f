"""Helpers shared by all tests."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
#: Factor for the number of random cases, in tenths: 10 runs all of them, 100 is for a nightly run.
VOLUME = int(os.environ.get("TEST_VOLUME", "1"))

#: Generous on purpose: the load of the machine must not fail a test.
PATIENCE = 300.0


def eventually(probe: Callable[[], T], what: str, patience: float = PATIENCE) -> T:
    """Wait until `probe` returns a truthy value, and return it; fail with `what` after `patience` seconds."""
    start = time.monotonic()
    while True:
        began = time.monotonic()
        value = probe()
        if value:
            return value
        now = time.monotonic()
        if now > start + patience:
            raise AssertionError(f"not within {patience:.0f} s: {what}")
        # A probe may start a process: leave most of the time to those observed. After a long wait, ask less often.
        time.sleep(max(0.02, 2 * (now - began), min(0.1, (now - start) / 10)))


def examples(count: int) -> int:
    """Return how many of `count` random cases to run: a tenth, times TEST_VOLUME."""
    return max(1, count * VOLUME // 10)
