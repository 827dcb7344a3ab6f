"""The first rows of a file, by its format: Parquet, CSV, JSON lines, NumPy arrays and archives. For other text files:
the first lines."""

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
#: Bytes that a sample reads of a text file (CSV and JSON lines too).
_HEAD = 64 * 1024
_LONGEST = 200
_WIDEST = 100


def sample(name: str, file: BinaryIO) -> dict[str, Any]:
    """Return what is known of a file: `format`, and if it has them, `schema`, `rows` and `rowCount`; for NumPy files
    also `shape`, `dtype` or `arrays`. Raises ValueError for a damaged file, and the errors of reading."""
    name = name.lower().removesuffix(".gz") if name.lower().endswith((".csv.gz", ".tsv.gz")) else name.lower()
    ending = name.rpartition(".")[2]
    return _READERS.get(ending, _text)(file)


def plain(value: Any) -> Any:
    """Return a value as JSON can express it. Long texts are cut."""
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
    """Return the first rows of an Arrow batch."""
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
        return {"format": "json", "rows": []}  # the first line is longer than the sample
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():  # programs skip empty lines
            try:
                rows.append([plain(json.dumps(json.loads(line)))])
            except (ValueError, RecursionError):
                raise ValueError(f"line {number} is not JSON: {plain(line)}") from None
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
    """Return the start of a text file, decompressed, without a cut last line; None if the file is not text."""
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
