"""The fetcher: a process for each exec that needs data from elsewhere. The fetcher has a session of its own and
outlives the server. So neither a slow download nor a faulty library can harm the server.

Its argument is the file with its order. Standard input has the values of the connections, secrets included,
as JSON: number of the source → values. SIGTERM cancels the fetcher.
"""

from __future__ import annotations

import errno
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
from typing import Any

from dlicmd.contract.data_sources import STREAM
from local_backend import network
from local_backend.data import registry
from local_backend.data.cache import Cache
from local_backend.data.download import download
from local_backend.data.errors import DataChanged, DataError, DataUnavailable, without
from local_backend.data.export import SCHEMA_FILE, TableLimits, export_table
from local_backend.data.kind import Family, FileFamily, TableFamily
from local_backend.data.order import DELIVERED, FAILED, FetchItem, FetchOrder, FetchOutcome, read_outcome
from local_backend.data.progress import Cancelled, FetchMeter, Gauge
from local_backend.files import read_json, write_json

#: Seconds before the next attempt: first pause and longest pause.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_FULL = (errno.ENOSPC, errno.EDQUOT)
#: Suffix of the file beside a stream's folder: the storage options that a reader needs.
OPTIONS = ".options.json"
Values = Mapping[int, Mapping[str, str]]


def main() -> int:
    """Transfer the data of an order. Return 0: the outcome is written, another fetcher is running, or this one was
    canceled."""
    order = FetchOrder.read(Path(sys.argv[1]))
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


def _insist_on_writing(outcome: FetchOutcome, path: Path, gauge: Gauge) -> None:
    """Write the outcome; retry until the disk has room. Raises Cancelled."""
    while True:
        try:
            return outcome.write(path)
        except OSError:
            gauge.sleep(_FIRST_PAUSE)


def fetch(order: FetchOrder, values: Values, gauge: Gauge) -> FetchOutcome:
    """Transfer all items of an order that are not delivered yet. Return the outcome. Raises Cancelled."""
    so_far = read_outcome(Path(order.outcome)) or FetchOutcome("")
    for item in order.items:
        if item.number in so_far.delivered:
            continue
        gauge.begin(item.label)
        given = values.get(item.number, {})
        secrets = registry.find(item.kind).secrets(given)
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
    item: FetchItem, values: Mapping[str, str], secrets: Sequence[str], order: FetchOrder, gauge: Gauge
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


def deliver(item: FetchItem, values: Mapping[str, str], order: FetchOrder, meter: FetchMeter) -> dict[str, Any]:
    """Deliver a data source. Return what the program learns about it: `files`, `bytes`, `version`; of a table also
    `schema`. Of a stream: `url`, `urls` and `storageOptionsFile`.

    A repeated call continues an incomplete delivery of files; a table begins anew. Raises DataError, DataUnavailable
    and Cancelled.
    """
    family = registry.find(item.kind).open(values, order.loopback)
    folder = Path(item.folder)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if item.access == STREAM:
            return _stream(family, item, folder)
        if isinstance(family, TableFamily):
            return _table(family, item, folder, order, meter)
        assert isinstance(family, FileFamily)
        return _files(family, item, folder, order.cache_bytes, meter)
    except OSError as problem:
        if problem.errno in _FULL:
            full = problem.filename or item.folder
            raise DataError(f"the disk of {full} is full; free some space and submit again") from None
        raise
    finally:
        family.close()


def _files(family: FileFamily, item: FetchItem, folder: Path, cache_bytes: int, meter: FetchMeter) -> dict[str, Any]:
    found = download(family, item.location, folder, Cache(Path(item.cache), cache_bytes), meter)
    return {"files": found.files, "bytes": found.size, "version": found.version}


def _table(family: TableFamily, item: FetchItem, folder: Path, order: FetchOrder, meter: FetchMeter) -> dict[str, Any]:
    found = export_table(family, item.location, folder, meter, TableLimits(order.table_rows, order.table_seconds))
    schema = read_json(folder / SCHEMA_FILE)
    return {"files": found.files, "bytes": found.size, "version": found.version, "schema": schema}


def _stream(family: Family, item: FetchItem, folder: Path) -> dict[str, Any]:
    """Write the storage options and return the addresses, so that the program reads the data. Transfer nothing."""
    options = family.storage()[1]
    assert isinstance(family, FileFamily)
    options_file = folder.with_name(folder.name + OPTIONS)
    write_json(options_file, options)
    urls = [family.url(file) for file in family.files(item.location)]
    return {"url": urls[0], "urls": urls, "storageOptionsFile": str(options_file)}

