"""The rows of a table file from a place on, for pages that show a large or growing file in parts.

A place is a number of bytes in CSV and JSON lines, and a number of rows in Parquet. So a part of a text file costs the
same wherever it begins. The functions run in a process of their own (limited_work.py).
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Any, BinaryIO

from local_backend.data.columns import columns_of
from local_backend.data.sample import LATIN, cells, delimiter, encoding_of, plain, rows_of, sample

#: Bytes of a text file that a part reads at most, and rows of Parquet that are decoded at once.
WINDOW, _BATCH = 256 * 1024, 8192
#: Why rows are missing: the last line has no end yet, a line is invalid, or a row has more bytes than WINDOW.
INCOMPLETE, INVALID, LONG = "incomplete", "invalid", "long"


def of_descriptor(descriptor: int, name: str, most: int, at: int) -> dict[str, Any]:
    """Return the rows of an open file with `ok`; for a damaged file only `ok` and the reason in `message`."""
    try:
        with open(descriptor, "rb", closefd=False) as file:
            return {"ok": True, **rows_from(name, file, most, at)}
    except Exception as problem:  # libraries raise any type for a damaged file
        return {"ok": False, "message": f"The file cannot be read in the format of its extension: {plain(problem)}"}


def rows_from(name: str, file: BinaryIO, most: int, at: int = 0) -> dict[str, Any]:
    """Return what `sample` returns, with the rows from a place on. `next` is the place after them, absent at the end of
    the file. `stopped` says why rows are missing, `encoding` is LATIN for a text that is not UTF-8. Raises ValueError
    for a damaged file, and the errors of reading."""
    ending = name.lower().rpartition(".")[2]
    if ending in ("parquet", "pq"):
        return _parquet(file, most, at)
    if ending in ("csv", "tsv"):
        return _csv(file, most, at, "\t" if ending == "tsv" else "")
    if ending in ("jsonl", "ndjson"):
        return _json_lines(file, most, at)
    return sample(name, file, most)


class _Window:
    """The whole lines of a part of a text file."""

    def __init__(self, file: BinaryIO, at: int, encoding: str = "") -> None:
        file.seek(at)
        content = file.read(WINDOW + 1)
        #: Whether the file ends here; the place after the lines that were read.
        self.is_last, self.place = len(content) <= WINDOW, at
        whole = content if self.is_last else content[: content.rfind(b"\n", 0, WINDOW) + 1]
        self._lines, self._end = io.BytesIO(whole).readlines(), at + len(whole)
        self.encoding = encoding or encoding_of(whole)
        self.text = whole.decode(self.encoding, "replace").removeprefix("\ufeff")
        self._about: dict[str, Any] = {"encoding": LATIN} if self.encoding == LATIN else {}
        if content and not whole:
            self._about["stopped"] = LONG
        self.is_text = b"\0" not in content

    def lines(self) -> Iterator[str]:
        """Yield the lines with their ends. A byte order mark is left out."""
        for line in self._lines:
            mark = "\ufeff" if self.place == 0 else ""
            self.place += len(line)
            yield line.decode(self.encoding, "replace").removeprefix(mark)

    def about(self) -> dict[str, Any]:
        """Return what the rows up to the present place do not say."""
        has_more = self.place < self._end or not self.is_last
        return self._about | ({"next": self.place} if has_more and "stopped" not in self._about else {})

    def stop(self, why: str) -> None:
        """Show no row after the present place."""
        self._about["stopped"] = why


def _csv(file: BinaryIO, most: int, at: int, between: str) -> dict[str, Any]:
    window = head = _Window(file, 0)
    if not head.is_text:
        return {"format": "binary"}
    between = between or delimiter(head.text)
    names = _names(head.text, between)
    if at:
        window = _Window(file, at, head.encoding)
    rows: list[list[Any]] = []
    places: list[int] = []
    wanted = most + (names is not None and not at)
    for row in csv.reader(window.lines(), delimiter=between):
        rows.append(cells(row))
        places.append(window.place)
        if len(rows) == wanted:
            break
    else:
        if not window.is_last and len(rows) > 1:  # the last row may go on after the window, inside of quotes
            rows.pop()
            window.place = places[-2]
    header = {} if names is None else {"schema": [{"name": name, "type": ""} for name in names]}
    return {"format": "csv", **header, "rows": rows[1:] if header and not at else rows, **window.about()}


def _names(text: str, between: str) -> list[Any] | None:
    """Return the first row if it has the names of columns: different texts, none of them a number, before other
    rows."""
    reader = csv.reader(io.StringIO(text), delimiter=between)
    first = next(reader, [])
    if len(set(first)) < len(first) or not all(map(str.strip, first)) or any(map(_is_number, first)):
        return None
    return cells(first) if first and next(reader, None) is not None else None


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", "."))
    except ValueError:
        return False
    return True


def _json_lines(file: BinaryIO, most: int, at: int) -> dict[str, Any]:
    window = _Window(file, at)
    if not window.is_text:
        return {"format": "binary"}
    rows: list[list[Any]] = []
    for line in window.lines():
        if line.strip():  # programs skip empty lines
            try:
                json.loads(line)
            except (ValueError, RecursionError):
                window.stop(INVALID if line.endswith("\n") else INCOMPLETE)
                break
            rows.append([plain(line.strip())])
            if len(rows) == most:
                break
    return {"format": "json", "rows": rows, **window.about()}


def _parquet(file: BinaryIO, most: int, at: int) -> dict[str, Any]:
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError:
        return {"format": "parquet"}
    found = ParquetFile(file)
    group, skipped, total = 0, at, found.metadata.num_rows
    while group < found.num_row_groups and skipped >= found.metadata.row_group(group).num_rows:
        skipped -= found.metadata.row_group(group).num_rows
        group += 1
    rows: list[list[Any]] = []
    groups = list(range(group, found.num_row_groups))
    for batch in found.iter_batches(batch_size=_BATCH if skipped else most, row_groups=groups) if groups else ():
        rows += rows_of(batch.slice(min(skipped, batch.num_rows)), most - len(rows))
        skipped = max(0, skipped - batch.num_rows)
        if len(rows) >= most:
            break
    rest = {"next": at + len(rows)} if rows and at + len(rows) < total else {}
    return {"format": "parquet", "schema": columns_of(found.schema_arrow), "rowCount": total, "rows": rows, **rest}
