"""Looks at a data source before anything is submitted, in a process of its own: the libraries are large, and some hang.

`python -m local_backend.data.previewer`: the wish as JSON on standard input, with the values of the connection; what
was found as JSON on standard output.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from local_backend import network
from local_backend.data import kinds
from local_backend.data.errors import DataError
from local_backend.data.kinds.base import Entry, FileFamily, TableFamily
from local_backend.data.model import columns_of
from local_backend.data.sample import ROWS, plain, rows_of, sample

#: Files that are counted, and those that are named.
_COUNTED, _NAMED = 100_000, 10
_BUFFER = 256 * 1024


@dataclass(frozen=True)
class Wish:
    """What is to be looked at: a path of this machine, or what a connection has."""

    path: str = ""
    kind: str = ""
    location: dict[str, Any] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict, repr=False)
    #: Whether it may connect to this machine.
    loopback: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def look(wish: Wish) -> dict[str, Any]:
    """`files`, `bytes` and the first `names` of files, `rowCount` of a table, and `schema` and `rows` where there are
    some, of NumPy's files `shape` and `dtype`, or `arrays` with them: of a folder, those of its first file that has.
    Raises DataError, and what libraries raise."""
    if wish.path:
        return _listed(_local(Path(wish.path)), lambda entry: open(entry.key, "rb", buffering=0))
    family = kinds.find(wish.kind).open(wish.values, wish.loopback)
    try:
        if isinstance(family, TableFamily):
            return _table(family, wish.location)
        assert isinstance(family, FileFamily)
        return _listed(family.entries(wish.location), lambda entry: _Remote(family, entry))
    finally:
        family.close()


def _local(path: Path) -> Iterator[Entry]:
    """The files of a folder, or the file itself. Raises DataError for what cannot be read."""
    if path.is_file():
        yield _readable(path, path.name)
        return
    for top, folders, names in os.walk(path, onerror=_refuse):
        folders.sort()
        for name in sorted(names):
            file = Path(top, name)
            if file.is_file():
                yield _readable(file, str(file.relative_to(path)))


def _readable(file: Path, name: str) -> Entry:
    if not os.access(file, os.R_OK):
        raise DataError(f"{file} may not be read by the user that jobs run as")
    return Entry(name, str(file), file.stat().st_size)


def _refuse(problem: OSError) -> None:
    raise DataError(f"{problem.filename} cannot be read by the user that jobs run as: {problem.strerror}")


def _listed(entries: Iterator[Entry], opened: Any) -> dict[str, Any]:
    found = list(islice(entries, _COUNTED + 1))
    more, found = len(found) > _COUNTED, found[:_COUNTED]
    sizes = [entry.size for entry in found]
    shown: dict[str, Any] = {
        "files": len(found), "more": more, "bytes": sum(size for size in sizes if size is not None),
        "names": [{"path": entry.path, "bytes": entry.size} for entry in found[:_NAMED]],
    }
    for entry in found[:_NAMED]:
        try:
            with opened(entry) as file:
                inside = sample(entry.path, file)
        except DataError:
            raise
        except Exception as problem:  # a file that is damaged, by whatever library
            raise DataError(f"{entry.path} cannot be read as what its name says: {plain(problem)}") from None
        shown |= {"sample": entry.path, **inside}
        if any(inside.get(what) for what in ("rows", "schema", "dtype", "arrays")):
            break
    return shown


def _table(family: TableFamily, location: Mapping[str, Any]) -> dict[str, Any]:
    path = location.get("path")
    if isinstance(path, str) and not {"table_name", "query", "collection"} & set(location):
        schema, _, table = path.rpartition(".")
        location = {"table_name": table, "collection": table} | ({"schema_name": schema} if schema else {})
    table_found = family.table(location)
    rows: list[list[Any]] = []
    for batch in family.batches(location, ROWS):
        rows += rows_of(batch)
        if len(rows) >= ROWS:
            break
    return {"format": "table", "schema": columns_of(table_found.schema), "rowCount": family.extent(location, 5.0).rows,
            "rows": rows[:ROWS]}


class _Remote(io.RawIOBase):
    """A file of a server that is read here and there."""

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
        """Hold what is there from here up to `end`, and some more."""
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
    out, sys.stdout = sys.stdout, sys.stderr  # what a library prints is no answer
    network.guard(wish.loopback)
    try:
        found = {"ok": True, **look(wish)}
    except DataError as problem:
        found = {"ok": False, "message": str(problem)}
    except Exception as problem:  # of whatever library
        found = {"ok": False, "message": f"{type(problem).__name__}: {' '.join(str(problem).split())}"}
    print(json.dumps(found), file=out)


if __name__ == "__main__":
    main()
