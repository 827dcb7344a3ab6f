"""Export of a table to Parquet files of limited size, with its schema beside them.

Reading and writing run at the same time. Memory does not grow with the table. A table is read in one pass, from one
state. After an interruption the export begins anew: rows that are read later would belong to another state.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from local_backend import files
from local_backend.data.columns import columns_of
from local_backend.data.errors import DataError
from local_backend.data.kind import SourceTable, TableFamily
from local_backend.data.progress import Delivered, FetchMeter

if TYPE_CHECKING:
    import pyarrow

#: Readers of a folder of Parquet files skip names that begin with an underscore.
SCHEMA_FILE = "_schema.json"
#: Bytes of a file, and bytes of rows in memory that become one row group.
SHARD_BYTES = 128 * 2**20
GROUP_BYTES = 8 * 2**20
#: Seconds between two checks whether the data is still needed.
_LOOK = 0.2
#: Seconds that a server may take to notice that its rows are not needed; then the reader thread is abandoned.
_PARTING = 2.0


@dataclass(frozen=True)
class TableLimits:
    """Limits of a table; None means no limit."""

    rows: int | None = None
    #: Seconds from the first contact with the server to the last row.
    seconds: float | None = None

    def exceeded(self, rows: int) -> str | None:
        """Return the message for a table with at least `rows` rows; None if the limit permits them."""
        if self.rows is None or rows <= self.rows:
            return None
        return (f"the table has more than {self.rows:,} rows, the limit of this server (DLI_DATA_ROWS); use a query "
                "that selects fewer rows")


def export_table(family: TableFamily, location: Mapping[str, Any], folder: Path, meter: FetchMeter,
           limits: TableLimits = TableLimits()) -> Delivered:
    """Write the data of a location as `part-00000.parquet`, … and `_schema.json` into a folder; remove files of an
    earlier attempt. A file with its final name is complete. The table is complete only with `_schema.json`.

    Raises DataError, DataUnavailable, Cancelled, OSError (disk full). Complete files may remain then.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("part-*.parquet"), *folder.glob(".part-*.tmp"), folder / SCHEMA_FILE):
        old.unlink(missing_ok=True)
    meter.expect(None)
    reader = _Reader(family, location, meter, limits)
    reader.start()
    try:
        table = reader.table()
        shards = _write(table.schema, reader.batches(), folder, meter)
    except BaseException:
        reader.give_up()
        raise
    rows = sum(shard["rows"] for shard in shards)
    files.write_json(folder / SCHEMA_FILE, {
        "columns": [column | {"nullable": table.schema.field(column["name"]).nullable}
                    for column in columns_of(table.schema)],
        "rows": rows,
        "shards": shards,
    })
    described = (folder / SCHEMA_FILE).stat().st_size
    meter.advance(described, 1)
    return Delivered(folder, len(shards) + 1, sum(shard["bytes"] for shard in shards) + described, table.version)


def _write(schema: pyarrow.Schema, batches: Iterator[pyarrow.RecordBatch], folder: Path,
           meter: FetchMeter) -> list[dict[str, Any]]:
    """Write the batches to files. Return name, rows and bytes of each file. One file is the minimum; it may have no
    rows."""
    shards: list[dict[str, Any]] = []
    shard = _Shard(folder, 0, schema, meter)
    rows = 0
    try:
        for group in _groups(schema, batches):
            if shard.size >= SHARD_BYTES:
                shards.append(shard.finish())
                shard = _Shard(folder, len(shards), schema, meter)
            shard.add(group)
            rows += group.num_rows
            meter.say(f"{rows:,} rows")
        shards.append(shard.finish())
    except BaseException:
        shard.drop()
        raise
    return shards


def _groups(schema: pyarrow.Schema, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.Table]:
    """Yield the same rows in pieces that are large enough for a row group each."""
    import pyarrow

    waiting: list[pyarrow.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= GROUP_BYTES:
            yield pyarrow.Table.from_batches(waiting, schema)
            waiting, size = [], 0
    if waiting:
        yield pyarrow.Table.from_batches(waiting, schema)


class _Shard:
    """A Parquet file that is being written."""

    def __init__(self, folder: Path, number: int, schema: pyarrow.Schema, meter: FetchMeter) -> None:
        import pyarrow.parquet

        self._path = folder / f"part-{number:05d}.parquet"
        self._temporary = folder / f".{self._path.name}.tmp"
        self._meter, self._rows, self.size = meter, 0, 0
        fd = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        self._file = os.fdopen(fd, "wb")
        self._writer = pyarrow.parquet.ParquetWriter(self._file, schema, compression="zstd", version="2.6")

    def add(self, group: pyarrow.Table) -> None:
        """Write one more row group."""
        if group.num_rows:
            self._writer.write_table(group, row_group_size=group.num_rows)
        self._rows += group.num_rows
        self._count()

    def finish(self) -> dict[str, Any]:
        """Complete the file and give it its final name. Return name, rows and bytes."""
        self._writer.close()
        self._file.flush()
        self._count(1)
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._temporary, self._path)
        files.sync_directory(self._path.parent)
        return {"file": self._path.name, "rows": self._rows, "bytes": self.size}

    def drop(self) -> None:
        """Remove the file: it is not needed, or cannot be written."""
        try:
            self._writer.close()
            self._file.close()
        except (OSError, ValueError):
            pass  # perhaps a full disk: the file is removed anyway
        self._temporary.unlink(missing_ok=True)

    def _count(self, whole: int = 0) -> None:
        size = self._file.tell()
        self._meter.advance(size - self.size, whole)
        self.size = size


@dataclass
class _End:
    """The end of the rows, or the error that ended them."""

    problem: BaseException | None = None


@dataclass
class _Reader:
    """Reads in a thread of its own, ahead of the writer. So a caller that waits for a slow server notices Cancelled at
    once."""

    family: TableFamily
    location: Mapping[str, Any]
    meter: FetchMeter
    limits: TableLimits
    _found: queue.Queue[Any] = field(default_factory=lambda: queue.Queue(2))
    _unwanted: threading.Event = field(default_factory=threading.Event)
    _begun: float = field(default_factory=time.monotonic)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._read, name="table reader", daemon=True)
        self._thread.start()

    def table(self) -> SourceTable:
        """Return the table that is read."""
        found: SourceTable = self._next()
        return found

    def batches(self) -> Iterator[pyarrow.RecordBatch]:
        """Yield the rows of the table. Raises DataError above the limits."""
        rows = 0
        while not isinstance(batch := self._next(), _End):
            rows += batch.num_rows
            if problem := self.limits.exceeded(rows):
                raise DataError(problem)
            yield batch

    def give_up(self) -> None:
        """Stop reading: no caller needs the rows."""
        self._unwanted.set()
        self.family.cancel()
        self._thread.join(_PARTING)

    def _next(self) -> Any:
        while True:
            self.meter.check()
            if self.limits.seconds is not None and time.monotonic() - self._begun > self.limits.seconds:
                raise DataError(f"reading the table took more than {self.limits.seconds:g} seconds, the limit of "
                                "this server (DLI_DATA_SECONDS); use a query that selects fewer rows")
            try:
                found = self._found.get(timeout=_LOOK)
            except queue.Empty:
                continue
            if isinstance(found, _End) and found.problem is not None:
                raise found.problem
            return found

    def _read(self) -> None:
        end = _End()
        try:
            self._put(self.family.table(self.location))
            most = None if self.limits.rows is None else self.limits.rows + 1
            for batch in self.family.batches(self.location, most):
                self._put(batch)
                if self._unwanted.is_set():
                    return
        except BaseException as problem:
            end = _End(problem)
        self._put(end)

    def _put(self, what: Any) -> None:
        while not self._unwanted.is_set():
            try:
                return self._found.put(what, timeout=_LOOK)
            except queue.Full:
                continue
