"""Delivers one data source to the folder where the program finds it, through the family for its server."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dlicmd.contract.data_sources import STREAM
from local_backend.data import kinds
from local_backend.data.errors import DataError
from local_backend.data.kinds.base import NO_STREAM, Family, FileFamily, TableFamily
from local_backend.data.model import Meter
from local_backend.data.order import Item, Order
from local_backend.files import read_json, write_json

_FULL = (errno.ENOSPC, errno.EDQUOT)
#: Suffix of the file beside a stream's folder: the storage options that a reader needs.
OPTIONS = ".options.json"


def deliver(item: Item, values: Mapping[str, str], order: Order, meter: Meter) -> dict[str, Any]:
    """Deliver a data source. Return what the program learns about it: `files`, `bytes`, `version`; of a table also
    `schema`. Of a stream: `url`, `urls` and `storageOptionsFile`.

    A repeated call continues an incomplete delivery of files; a table begins anew. Raises DataError, DataUnavailable
    and Cancelled.
    """
    family = kinds.find(item.kind).open(values, order.loopback)
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


def _files(family: FileFamily, item: Item, folder: Path, cache_bytes: int, meter: Meter) -> dict[str, Any]:
    from local_backend.data.cache import Cache
    from local_backend.data.download import download

    found = download(family, item.location, folder, Cache(Path(item.cache), cache_bytes), meter)
    return {"files": found.files, "bytes": found.size, "version": found.version}


def _table(family: TableFamily, item: Item, folder: Path, order: Order, meter: Meter) -> dict[str, Any]:
    from local_backend.data.shards import SCHEMA_FILE, TableLimits, export

    found = export(family, item.location, folder, meter, TableLimits(order.table_rows, order.table_seconds))
    schema = read_json(folder / SCHEMA_FILE)
    return {"files": found.files, "bytes": found.size, "version": found.version, "schema": schema}


def streaming(family: Family) -> FileFamily:
    """Return the family if a program can read the data of its servers by itself. Raises DataError if not."""
    if not isinstance(family, FileFamily):
        raise DataError(NO_STREAM)
    family.storage()
    return family


def _stream(family: Family, item: Item, folder: Path) -> dict[str, Any]:
    """Write the storage options and return the addresses, so that the program reads the data. Fetch nothing."""
    files = streaming(family)
    file = folder.with_name(folder.name + OPTIONS)
    write_json(file, files.storage()[1])
    keys = [files.url(entry) for entry in files.entries(item.location)]
    return {"url": keys[0], "urls": keys, "storageOptionsFile": str(file)}
