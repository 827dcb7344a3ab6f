"""The fetcher: a process for each exec that needs data from elsewhere. The fetcher has a session of its own and
outlives the server. So neither a slow download nor a faulty library can harm the server.

Usage: `python -m local_backend.data.fetcher ORDER`. Standard input has the values of the connections, secrets included,
as JSON: number of the source → values. SIGTERM cancels the fetcher.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType

from local_backend import network
from local_backend.data import kinds
from local_backend.data.deliver import deliver
from local_backend.data.errors import DataChanged, DataError, DataUnavailable
from local_backend.data.gauge import Gauge
from local_backend.data.hidden import secrets_of, without
from local_backend.data.model import Cancelled
from local_backend.data.order import DELIVERED, FAILED, Item, Order, Outcome, read_outcome
from local_backend.files import write_json

#: Seconds before the next attempt: first pause and longest pause.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
Values = Mapping[int, Mapping[str, str]]


def main() -> int:
    """Fetch the data of an order. Return 0: the outcome is written, another fetcher is running, or this one was
    canceled."""
    order = Order.read(Path(sys.argv[1]))
    values = {int(number): given for number, given in json.load(sys.stdin).items()}
    lock = os.open(order.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0
    os.truncate(lock, 0)
    os.write(lock, str(os.getpid()).encode())
    network.guard(order.loopback)
    gauge = Gauge(
        lambda text: _note(Path(order.progress), text), lambda: order.server is None or os.getppid() == order.server
    )

    def stop(_number: int, _frame: FrameType | None) -> None:
        gauge.cancel()

    signal.signal(signal.SIGTERM, stop)
    gauge.start()
    try:
        _insist_on_writing(fetch(order, values, gauge), Path(order.outcome), gauge)
    except Cancelled:
        return 0
    finally:
        gauge.close()
    return 0


def _note(path: Path, text: str) -> None:
    try:
        write_json(path, text, durable=False)
    except OSError:
        return  # the disk is full: this loses the progress text, but need not stop the delivery


def _insist_on_writing(outcome: Outcome, path: Path, gauge: Gauge) -> None:
    """Write the outcome; retry until the disk has room. Raises Cancelled."""
    while True:
        try:
            return outcome.write(path)
        except OSError:
            gauge.sleep(_FIRST_PAUSE)


def fetch(order: Order, values: Values, gauge: Gauge) -> Outcome:
    """Fetch all items of an order that are not delivered yet. Return the outcome. Raises Cancelled."""
    so_far = read_outcome(Path(order.outcome)) or Outcome("")
    for item in order.items:
        if item.number in so_far.delivered:
            continue
        gauge.begin(item.label)
        given = values.get(item.number, {})
        secrets = secrets_of(kinds.find(item.kind).fields, given)
        try:
            found = _insist(item, given, secrets, order, gauge)
            so_far = replace(so_far, delivered={**so_far.delivered, item.number: found})
            so_far.write(Path(order.outcome))
        except DataError as problem:
            return replace(so_far, state=FAILED, message=f"{item.label}: {without(problem, secrets)}")
        except Cancelled:
            raise
        except Exception as problem:
            return replace(
                so_far, state=FAILED, trace=without(traceback.format_exc(), secrets),
                message=f"{item.label} could not be fetched: {type(problem).__name__}: {without(problem, secrets)}",
            )
    return replace(so_far, state=DELIVERED)


def _insist(
    item: Item, values: Mapping[str, str], secrets: Sequence[str], order: Order, gauge: Gauge
) -> dict[str, object]:
    """Deliver an item. Retry after DataUnavailable until no byte has arrived for `order.patience` seconds, then raise
    DataError."""
    pause, tries, since, arrived = _FIRST_PAUSE, 1, time.monotonic(), gauge.arrived
    while True:
        try:
            return deliver(item, values, order, gauge)
        except DataUnavailable as problem:
            # Bytes of a file that has changed since do not count as progress.
            if gauge.arrived != arrived and not isinstance(problem, DataChanged):
                pause, tries, since, arrived = _FIRST_PAUSE, 1, time.monotonic(), gauge.arrived
            waited = time.monotonic() - since
            if waited + pause > order.patience:
                count = "1 try" if tries == 1 else f"{tries} tries"
                raise DataError(f"{problem}; gave up after {count} in {waited:.0f} s (DLI_DATA_PATIENCE)") from None
            tries += 1
            gauge.say(f"{without(problem, secrets)}; try {tries} starts in {pause:.0f} s")
            gauge.sleep(pause)
            pause = min(_LONGEST_PAUSE, pause * 2)


if __name__ == "__main__":
    sys.exit(main())
