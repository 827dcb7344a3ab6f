"""Looks at the data of a connection, in a process of its own: previews data before a submission, and tests connections.
The libraries for such servers are large, and some hang.

Standard input has the request as JSON, with the values of the connection.
The result goes to standard output as JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

from dlicmd.contract.data_sources import STREAM
from local_backend import interpreter, network
from local_backend.data import registry
from local_backend.data.columns import columns_of
from local_backend.data.errors import DataError, without
from local_backend.data.kind import (
    Connection,
    Extent,
    FileFamily,
    Mounted,
    SourceFile,
    TableFamily,
)
from local_backend.data.listing import distinct_files
from local_backend.data.sample import ROWS, plain, rows_of, sample
from local_backend.data.storage import DataRoots, DataSight, Unreadable, files_of, mounted
from local_backend.own_process import JOB_SCORE, may_be_killed

#: Most files that are counted, and most files that are named.
_COUNTED, _NAMED = 100_000, 10
_BUFFER = 256 * 1024
#: Seconds that a server may count the rows of a table, and further seconds to end the count and return its estimate.
_COUNTING, _PARTING = 5.0, 2.0
#: Seconds that a test may take, and characters of its result.
PATIENCE, _LONGEST = 30.0, 1000
#: Bytes of memory that the process may allocate.
_MEMORY = 2 << 30


@dataclass(frozen=True)
class ProbeRequest:
    """The data to look at: a path of this machine without the folders `kept` in it, or data of a connection. With
    `test`, only whether the server accepts the connection."""

    path: str = ""
    kind: str = ""
    location: dict[str, Any] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict, repr=False)
    access: str = ""
    #: Real paths of this machine that the requesting user may not use, and those outside of which the user may use
    #: nothing; none for all of the machine.
    closed: list[str] = field(default_factory=list)
    within: list[str] = field(default_factory=list)
    #: Whether the process may connect to this machine.
    loopback: bool = False
    kept: tuple[str, ...] = ()
    test: bool = False

    def run(self, seconds: float) -> dict[str, Any]:
        """Return the result of a process that looks: `ok`, or the reason in `message`; of a preview also what `look`
        returns. The process may take `seconds`."""
        try:
            done = subprocess.run(
                interpreter.command("local_backend.data.probe"), input=json.dumps(asdict(self)).encode(),
                capture_output=True, timeout=seconds, check=False, start_new_session=True, cwd="/",
            )
            found: dict[str, Any] = json.loads(done.stdout)
        except subprocess.TimeoutExpired:
            return {"ok": False, "message": f"the data server did not answer within {seconds:.0f} seconds"}
        except ValueError:
            return {"ok": False, "message": f"the process ended without a result (exit code {done.returncode})"}
        return found


def tested(connection: Connection, roots: DataRoots) -> str | None:
    """Return what is wrong with a connection; None if its server accepts the credentials, or if its volume exists.
    `roots` are the places where the user's data may lie. Raises DataError when the connection cannot be tested."""
    kind = registry.find(connection.kind)
    values = kind.check(connection.values)
    if issubclass(kind.family, Mounted):
        mounted(values, {}, roots)
        return None
    request = ProbeRequest(kind=connection.kind, values=dict(connection.values), loopback=roots.anywhere, test=True)
    found = request.run(PATIENCE)
    return None if found["ok"] else hidden(str(found["message"]), connection)[:_LONGEST]


def hidden(text: str, connection: Connection) -> str:
    """Return a text of a library without the secrets of the connection."""
    return without(text, registry.find(connection.kind).secrets(connection.values))


def look(request: ProbeRequest) -> dict[str, Any]:
    """Return the preview. Of files: `files`, `bytes` and the first `names`. Of a table: `rowCount` and `bytes`. Also
    `schema` and `rows` if available, and of NumPy files `shape` and `dtype`, or `arrays` with them. In a folder these
    come from the first file that has them. Raises DataError for data that a job could not get, and the errors of
    libraries. Of a test: nothing if the server accepts the connection."""
    if request.path:
        return _of_this_machine(request)
    family = registry.find(request.kind).open(request.values, request.loopback)
    try:
        if request.test:
            family.test()
            return {}
        if request.access == STREAM:
            family.storage()
        if isinstance(family, TableFamily):
            return _table(family, request.location)
        assert isinstance(family, FileFamily)
        found, more = _first(family.files(request.location))
        if request.access == STREAM:
            for file in found[:1]:
                family.url(file)
        else:
            found = distinct_files(found)
        return _listed(found, more) | _sampled(found, lambda entry: _Remote(family, entry))
    finally:
        family.close()


def _of_this_machine(request: ProbeRequest) -> dict[str, Any]:
    unread = Unreadable()
    sight = DataSight(request.closed, request.kept, request.within)
    found, more = _first(files_of(request.path, sight, unread))

    def opened(entry: SourceFile) -> Any:
        return open(sight.open(entry.key, os.O_RDONLY), "rb", buffering=0)

    def passed_over(entry: SourceFile, problem: Exception) -> bool:
        # An error without a number is a library's complaint about the content of the file.
        if not isinstance(problem, OSError) or problem.errno is None:
            return False
        unread.add(entry.path, problem)
        return True

    shown = _listed(found, more) | _sampled(found, opened, passed_over)
    if unread.count and not found:
        first = unread.names[0]
        raise DataError(f"the user that jobs run as cannot read any file in {request.path}: {first['path']}: "
                        f"{first['message']}" + (f", and {unread.count - 1:,} more" if unread.count > 1 else ""))
    return shown | ({"unreadable": unread.count, "unreadableNames": unread.names} if unread.count else {})


def _first(files: Iterator[SourceFile]) -> tuple[list[SourceFile], bool]:
    """Return the first files, at most as many as are counted, and whether there are more."""
    found = list(islice(files, _COUNTED + 1))
    return found[:_COUNTED], len(found) > _COUNTED


def _listed(found: Sequence[SourceFile], more: bool) -> dict[str, Any]:
    return {
        "files": len(found), "more": more, "bytes": sum(entry.size for entry in found if entry.size is not None),
        "names": [{"path": entry.path, "bytes": entry.size} for entry in found[:_NAMED]],
    }


def _sampled(found: Sequence[SourceFile], opened: Callable[[SourceFile], Any],
             passed_over: Callable[[SourceFile, Exception], bool] = lambda _entry, _problem: False) -> dict[str, Any]:
    """Return the sample of the first file with something to show. Skip files for which `passed_over` returns True."""
    shown: dict[str, Any] = {}
    for entry in found[:_NAMED]:
        try:
            with opened(entry) as file:
                inside = sample(entry.path, file)
        except (DataError, MemoryError):
            raise
        except Exception as problem:  # libraries raise any type for a damaged file
            if passed_over(entry, problem):
                continue
            raise DataError(f"{entry.path} cannot be read in the format of its extension: {plain(problem)}") from None
        shown = {"sample": entry.path, **inside}
        if any(inside.get(what) for what in ("rows", "schema", "dtype", "arrays")):
            break
    return shown


def _table(family: TableFamily, location: Mapping[str, Any]) -> dict[str, Any]:
    schema = family.table(location).schema
    rows: list[list[Any]] = []
    for batch in family.batches(location, ROWS):
        rows += rows_of(batch)
        if len(rows) >= ROWS:
            break
    extent = _extent(family, location)
    return {"format": "table", "schema": columns_of(schema), "rowCount": extent.rows,
            "rowCountEstimated": extent.estimated, "bytes": extent.size, "rows": rows[:ROWS]}


def _extent(family: TableFamily, location: Mapping[str, Any]) -> Extent:
    """Return the extent of the data, as far as it is known in time: a preview can do without it."""
    found: list[Extent] = []

    def ask() -> None:
        with contextlib.suppress(Exception):  # libraries raise any type
            found.append(family.extent(location, _COUNTING))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    # A server without a time limit continues the count after this process ends.
    thread.join(_COUNTING + _PARTING)
    return found[0] if found else Extent()


class _Remote(io.RawIOBase):
    """A file of a server, with random access."""

    def __init__(self, family: FileFamily, entry: SourceFile) -> None:
        self._family, self._entry, self._at = family, entry, 0
        self._start, self._held = 0, b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._entry.size is not None

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._entry.size or 0}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = self._entry.size if size < 0 else self._at + size
        if end is not None and self._entry.size is not None:
            end = min(end, self._entry.size)
        if end is not None and end <= self._at:
            return b""
        if not (end is not None and self._start <= self._at and end <= self._start + len(self._held)):
            self._fetch(end)
        found = self._held[self._at - self._start :][: None if end is None else end - self._at]
        self._at += len(found)
        return found

    def readinto(self, buffer: Any) -> int:
        found = self.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def _fetch(self, end: int | None) -> None:
        """Hold the bytes from the current position up to `end`, and some more."""
        last = None if end is None else max(end, self._at + _BUFFER)
        if last is not None and self._entry.size is not None:
            last = min(last, self._entry.size)
        start = self._at if self._entry.ranges else 0
        pieces, length = [], 0
        reading = self._family.read(self._entry, start, last if self._entry.ranges else None)
        for piece in reading:
            pieces.append(piece)
            length += len(piece)
            if last is not None and length >= last - start:
                break
        reading.close()
        self._start, self._held = start, b"".join(pieces)


def _limit_memory() -> None:
    """Let an allocation fail before this process takes the memory of others: a file of some KiB may unpack to GiB."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = _MEMORY if hard == resource.RLIM_INFINITY else min(_MEMORY, hard)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def main() -> None:
    """See the module."""
    may_be_killed(JOB_SCORE)
    _limit_memory()
    request = ProbeRequest(**json.loads(sys.stdin.buffer.read()))
    out, sys.stdout = sys.stdout, sys.stderr  # prints of libraries are not part of the answer
    network.guard(request.loopback)
    try:
        found = {"ok": True, **look(request)}
    except DataError as problem:
        found = {"ok": False, "message": str(problem)}
    except MemoryError:
        found = {"ok": False, "message": f"the preview of this data needs more than {_MEMORY >> 20:,} MiB of memory"}
    except Exception as problem:  # libraries raise any type
        found = {"ok": False, "message": f"{type(problem).__name__}: {' '.join(str(problem).split())}"}
    print(json.dumps(found), file=out)

