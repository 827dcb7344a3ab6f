"""Helpers shared by all tests."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
#: How many times a tenth of the random cases is tried: 10 for all, 100 for a night.
VOLUME = int(os.environ.get("TEST_VOLUME", "1"))

#: Generous on purpose: tests must not depend on how busy the machine is.
PATIENCE = 90.0


def eventually(probe: Callable[[], T], what: str, patience: float = PATIENCE) -> T:
    """Wait until `probe` returns something truthy, and return it; fail with `what` when it never does."""
    deadline = time.monotonic() + patience
    while True:
        began = time.monotonic()
        value = probe()
        if value:
            return value
        now = time.monotonic()
        if now > deadline:
            raise AssertionError(f"not within {patience:.0f} s: {what}")
        # Who asks by starting a process leaves as much time to those that it waits for as the asking takes.
        time.sleep(max(0.02, now - began))


def examples(count: int) -> int:
    """Return how many random cases to try of `count`: a tenth, times TEST_VOLUME."""
    return max(1, count * VOLUME // 10)
