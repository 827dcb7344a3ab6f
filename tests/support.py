"""Helpers shared by all tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: Generous on purpose: tests must not depend on how busy the machine is.
PATIENCE = 90.0


def eventually(probe: Callable[[], T], what: str, patience: float = PATIENCE) -> T:
    """Wait until `probe` returns something truthy, and return it; fail with `what` when it never does."""
    deadline = time.monotonic() + patience
    while True:
        value = probe()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {patience:.0f} s: {what}")
        time.sleep(0.02)
