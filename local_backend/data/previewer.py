"""Previews a data source before a submission, in a process of its own: the libraries are large, and some hang.

Usage: `python -m local_backend.data.previewer`. Standard input has the wish as JSON, with the values of the connection.
The preview goes to standard output as JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

from dlicmd.contract.data_sources import STREAM
from local_backend import network
from local_backend.data import kinds
from local_backend.data.deliver import streaming
from local_backend.data.errors import DataError
from local_backend.data.folder import Unread, files_of
from local_backend.data.kinds.base import Entry, Extent, FileFamily, TableFamily
from local_backend.data.listing import checked
from local_backend.data.model import columns_of
from local_backend.data.sample import ROWS, plain, rows_of, sample

#: Most files that are counted, and most files that are named.
_COUNTED, _NAMED = 100_000, 10
_BUFFER = 256 * 1024
#: Seconds that a server may count the rows of a table, and further seconds to end the count and return its estimate.
_COUNTING, _PARTING = 5.0, 2.0


@dataclass(frozen=True)
class Wish:
    """The data to preview: a path of this machine without the folders `kept` in it, or data of a connection."""

    path: str = ""
    kind: str = ""
    location: dict[str, Any] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict, repr=False)
    access: str = ""
    #: Places of this machine that the requesting user may not use.
    closed: list[str] = field(default_factory=list)
    #: Whether the previewer may connect to this machine.
    loopback: bool = False
    kept: tuple[str, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def look(wish: Wish) -> dict[str, Any]:
    """Return the preview. Of files: `files`, `bytes` and the first `names`. Of a table: `rowCount` and `bytes`. Also
    `schema` and `rows` if available, and of NumPy files `shape` and `dtype`, or `arrays` with them. In a folder these
    come from the first file that has them. Raises DataError for data that a job could not get, and the errors of
    libraries."""
    if wish.path:
        return _of_this_machine(wish)
    family = kinds.find(wish.kind).open(wish.values, wish.loopback)
    try:
        if wish.access == STREAM:
            return _streamed(streaming(family), wish.location)
        if isinstance(family, TableFamily):
            return _table(family, wish.location)
        assert isinstance(family, FileFamily)
        found, more = _first(family.entries(wish.location))
        found = checked(found)
        return _listed(found, more) | _sampled(found, lambda entry: _Remote(family, entry))
    finally:
        family.close()


def _of_this_machine(wish: Wish) -> dict[str, Any]:
    unread = Unread()
    found, more = _first(files_of(wish.path, wish.closed, wish.kept, unread))

    def opened(entry: Entry) -> Any:
        return open(entry.key, "rb", buffering=0)

    def passed_over(entry: Entry, problem: Exception) -> bool:
        # An error without a number is a library's complaint about the content of the file.
        if not isinstance(problem, OSError) or problem.errno is None:
            return False
        unread.add(entry.path, problem)
        return True

    shown = _listed(found, more) | _sampled(found, opened, passed_over)
    if unread.count and not found:
        first = unread.names[0]
        raise DataError(f"the user that jobs run as cannot read any file in {wish.path}: {first['path']}: "
                        f"{first['message']}" + (f", and {unread.count - 1:,} more" if unread.count > 1 else ""))
    return shown | ({"unreadable": unread.count, "unreadableNames": unread.names} if unread.count else {})


def _streamed(family: FileFamily, location: Mapping[str, Any]) -> dict[str, Any]:
    found, more = _first(family.entries(location))
    for entry in found[:1]:
        family.url(entry)
    return _listed(found, more) | _sampled(found, lambda entry: _Remote(family, entry))


def _first(entries: Iterator[Entry]) -> tuple[list[Entry], bool]:
    """Return the first entries, at most as many as are counted, and whether there are more."""
    found = list(islice(entries, _COUNTED + 1))
    return found[:_COUNTED], len(found) > _COUNTED


def _listed(found: Sequence[Entry], more: bool) -> dict[str, Any]:
    return {
        "files": len(found), "more": more, "bytes": sum(entry.size for entry in found if entry.size is not None),
        "names": [{"path": entry.path, "bytes": entry.size} for entry in found[:_NAMED]],
    }


def _sampled(found: Sequence[Entry], opened: Callable[[Entry], Any],
             passed_over: Callable[[Entry, Exception], bool] = lambda _entry, _problem: False) -> dict[str, Any]:
    """Return the sample of the first file with something to show. Skip files for which `passed_over` returns True."""
    shown: dict[str, Any] = {}
    for entry in found[:_NAMED]:
        try:
            with opened(entry) as file:
                inside = sample(entry.path, file)
        except DataError:
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

    def __init__(self, family: FileFamily, entry: Entry) -> None:
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


def main() -> None:
    """See the module."""
    wish = Wish(**json.loads(sys.stdin.buffer.read()))
    out, sys.stdout = sys.stdout, sys.stderr  # prints of libraries are not part of the answer
    network.guard(wish.loopback)
    try:
        found = {"ok": True, **look(wish)}
    except DataError as problem:
        found = {"ok": False, "message": str(problem)}
    except Exception as problem:  # libraries raise any type
        found = {"ok": False, "message": f"{type(problem).__name__}: {' '.join(str(problem).split())}"}
    print(json.dumps(found), file=out)


if __name__ == "__main__":
    main()
