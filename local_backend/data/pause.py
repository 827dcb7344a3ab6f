"""Waiting that notices when no job needs the data any more."""

from __future__ import annotations

import time

from local_backend.data.model import Meter

_SLICE_S = 0.2


def pause(meter: Meter, seconds: float = _SLICE_S) -> None:
    """Sleep in slices. Raises Cancelled."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        meter.check()
        time.sleep(min(_SLICE_S, left))
    meter.check()
