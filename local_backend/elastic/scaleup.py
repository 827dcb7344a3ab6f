"""The script's own limit on the number of workers in each epoch: `scaleup_function(epoch, max_engine_num)`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def limits(function: Callable[[int, int], Any] | None, epochs: int, most: int) -> tuple[int, ...]:
    """Return the limit on workers for each epoch, from 1 to `most`; () for no limits.

    A function that fails, or returns anything but whole numbers above 0, is ignored with a warning on stderr.
    """
    if function is None:
        return ()
    found = []
    for epoch in range(epochs):
        try:
            value = function(epoch, most)
        except Exception as error:
            return _ignored(f"scaleup_function({epoch}, {most}) raised {error!r}")
        if isinstance(value, bool) or not hasattr(value, "__index__") or int(value.__index__()) < 1:
            return _ignored(f"scaleup_function({epoch}, {most}) returned {value!r}")
        found.append(min(most, int(value.__index__())))
    return tuple(found)


def _ignored(why: str) -> tuple[int, ...]:
    print(
        f"WARNING: {why}, so the function is ignored. It gets an epoch, counted from 0, and the maximum number of "
        "workers of the job. It must return the maximum number of workers for that epoch, a whole number of at least "
        "1.",
        file=sys.stderr, flush=True,
    )
    return ()
