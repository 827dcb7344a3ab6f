"""The first rows of a file, by what it is: Parquet, CSV, JSON lines, NumPy's arrays and archives; of any other that is
text, lines."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from itertools import islice
from typing import Any, BinaryIO

from local_backend.data import arrays
from local_backend.data.model import columns_of

ROWS = 10
#: Bytes of a file that are looked at, its end of Parquet not counted.
_HEAD = 64 * 1024
_LONGEST = 200
_WIDEST = 100


def sample(name: str, file: BinaryIO) -> dict[str, Any]:
    """What can be said of a file: `format`, and where it has them `schema`, `rows` and `rowCount`. Raises what reading
    raises, and ValueError for a file that is damaged."""
    name = name.lower().removesuffix(".gz") if name.lower().endswith((".csv.gz", ".tsv.gz")) else name.lower()
    ending = name.rpartition(".")[2]
    return _READERS.get(ending, _text)(file)


def plain(value: Any) -> Any:
    """A value as JSON can say it, cut to a bearable length."""
    if value is None or isinstance(value, bool | int | float):
        return value if not isinstance(value, float) or abs(value) < float("inf") else str(value)
    text = value.hex(" ", 4) if isinstance(value, bytes) else str(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _parquet(file: BinaryIO) -> dict[str, Any]:
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError:
        return {"format": "parquet"}
    found = ParquetFile(file)
    batch = next(found.iter_batches(batch_size=ROWS), None)
    return {
        "format": "parquet", "schema": columns_of(found.schema_arrow), "rowCount": found.metadata.num_rows,
        "rows": rows_of(batch) if batch is not None else [],
    }


def rows_of(batch: Any) -> list[list[Any]]:
    """The first rows of an Arrow batch."""
    return [[plain(value) for value in row.values()] for row in batch.slice(0, ROWS).to_pylist()]


def _csv(file: BinaryIO) -> dict[str, Any]:
    text = _head(file)
    if text is None:
        return {"format": "binary"}
    try:
        dialect: Any = csv.Sniffer().sniff(text[:8192], ",;\t|")
    except csv.Error:
        dialect = csv.excel
    first = islice(csv.reader(io.StringIO(text), dialect), ROWS + 1)
    return {"format": "csv", "rows": [[plain(value) for value in row[:_WIDEST]] for row in first]}


def _json_lines(file: BinaryIO) -> dict[str, Any]:
    text = _head(file)
    if text is None:
        return {"format": "binary"}
    if "\n" not in text and file.read(1):
        return {"format": "json", "rows": []}  # the first line is longer than what is looked at
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():  # those that are empty, programs leave out
            try:
                rows.append([plain(json.dumps(json.loads(line)))])
            except (ValueError, RecursionError):
                raise ValueError(f"line {number} is no JSON: {plain(line)}") from None
    return {"format": "json", "rows": rows[:ROWS]}


def _numpy(file: BinaryIO) -> dict[str, Any]:
    return _shown(arrays.npy(file, ROWS))


def _archive(file: BinaryIO) -> dict[str, Any]:
    return _shown(arrays.npz(file, ROWS))


def _shown(found: dict[str, Any]) -> dict[str, Any]:
    return found | {"rows": [[plain(value) for value in row] for row in found.get("rows", ())]}


def _text(file: BinaryIO) -> dict[str, Any]:
    text = _head(file)
    if text is None:
        return {"format": "binary"}
    return {"format": "text", "rows": [[plain(line)] for line in text.splitlines()[:ROWS]]}


def _head(file: BinaryIO) -> str | None:
    """The beginning of a text file without a last line that is cut, unpacked; None when it is none."""
    head = file.read(_HEAD)
    cut = len(head) == _HEAD
    if head[:2] == b"\x1f\x8b":
        import zlib

        unpacking = zlib.decompressobj(wbits=31)
        head = unpacking.decompress(head, _HEAD)
        cut = not unpacking.eof
    if b"\0" in head:
        return None
    text = ((cut and head[: head.rfind(b"\n") + 1]) or head).decode("utf-8", "replace")
    return text if text.count("\ufffd") < 10 else None


_READERS: dict[str, Callable[[BinaryIO], dict[str, Any]]] = {
    "parquet": _parquet, "pq": _parquet, "csv": _csv, "tsv": _csv, "jsonl": _json_lines, "ndjson": _json_lines,
    "npy": _numpy, "npz": _archive,
}
