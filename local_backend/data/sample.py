"""The first rows of a file, by its format: Parquet, CSV, JSON lines, NumPy arrays and archives. For other text files:
the first lines.

NumPy files (`.npy` is an array, `.npz` is an archive of arrays) are parsed by the format's definition (NumPy
enhancement proposal 1): NumPy is a library of the program, not of the server.
"""

from __future__ import annotations

import ast
import codecs
import csv
import io
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from itertools import islice
from math import prod
from typing import Any, BinaryIO

from local_backend.data.columns import columns_of

ROWS = 10
#: The encoding of a text that is not UTF-8; control characters that such a text does not have.
LATIN = "latin-1"
_CONTROLS = re.compile(rb"[\x00-\x06\x0e-\x1a\x1c-\x1f\x7f]")
#: Bytes that a sample reads of a text file (CSV and JSON lines too).
_HEAD = 64 * 1024
_LONGEST = 200
_WIDEST = 100
#: Characters between cells, the likeliest first; characters and rows of a file that decide which one it has.
_DELIMITERS, _DIALECT, _DIALECT_ROWS = ",;\t|", 8192, 20
#: Kind and size of an element → format character of `struct`.
_ELEMENTS = {
    "b1": "?", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q", "f2": "e",
    "f4": "f", "f8": "d",
}
#: Kind of an element → its name, with the number of bits, and without.
_TYPES = {"i": "int", "u": "uint", "f": "float", "c": "complex"}
_NAMES = {"b": "bool", "U": "str", "S": "bytes", "O": "object", "M": "datetime64", "m": "timedelta64"}
_LONGEST_HEADER = 64 * 1024
#: Most elements of a row of an array, and most arrays of an archive, that are shown.
_ELEMENTS_SHOWN, _ARRAYS_SHOWN = 16, 100
#: Bytes from one row to the next above which only the first row is shown: skipped bytes may have to be fetched or
#: decompressed. No row is shown if its first elements have more bytes.
_FARTHEST = 1 << 20


def sample(name: str, file: BinaryIO, most: int = ROWS) -> dict[str, Any]:
    """Return what is known of a file: `format`, and if it has them, `schema`, at most the first `most` `rows` and
    `rowCount`; for NumPy files also `shape`, `dtype` or `arrays`. Raises ValueError for a damaged file, and the errors
    of reading."""
    name = name.lower().removesuffix(".gz") if name.lower().endswith((".csv.gz", ".tsv.gz")) else name.lower()
    ending = name.rpartition(".")[2]
    return _READERS.get(ending, _text)(file, most)


def plain(value: Any) -> Any:
    """Return a value as JSON can express it. Long texts are cut."""
    if value is None or isinstance(value, bool | int | float):
        return value if not isinstance(value, float) or abs(value) < float("inf") else str(value)
    text = value.hex(" ", 4) if isinstance(value, bytes) else str(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _parquet(file: BinaryIO, most: int) -> dict[str, Any]:
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError:
        return {"format": "parquet"}
    found = ParquetFile(file)
    batch = next(found.iter_batches(batch_size=most), None)
    return {
        "format": "parquet", "schema": columns_of(found.schema_arrow), "rowCount": found.metadata.num_rows,
        "rows": rows_of(batch, most) if batch is not None else [],
    }


def rows_of(batch: Any, most: int = ROWS) -> list[list[Any]]:
    """Return the first rows of an Arrow batch."""
    return [[plain(value) for value in row.values()] for row in batch.slice(0, most).to_pylist()]


def _csv(file: BinaryIO, most: int) -> dict[str, Any]:
    text, about = _head(file)
    if text is None:
        return {"format": "binary"}
    first = islice(csv.reader(io.StringIO(text), delimiter=delimiter(text)), most + 1)
    return {"format": "csv", "rows": [cells(row) for row in first], **about}


def cells(row: Sequence[str]) -> list[Any]:
    """Return the shown cells of a row of CSV."""
    return [plain(value) for value in row[:_WIDEST]]


def delimiter(text: str) -> str:
    """Return the character between the cells of CSV: the one that gives the most rows the same number of cells."""
    lines = text[:_DIALECT].splitlines()[:_DIALECT_ROWS]
    found = [(_agreement(lines, one), one) for one in _DELIMITERS]
    return max(found, key=lambda scored: scored[0])[1]


def _agreement(lines: Sequence[str], between: str) -> tuple[float, int]:
    """Return the part of the rows with as many cells as the first, and this number; 0 if a row has one cell."""
    try:
        widths = [len(row) for row in csv.reader(lines, delimiter=between) if row]
    except csv.Error:
        return 0.0, 0
    if not widths or widths[0] < 2:
        return 0.0, 0
    return widths.count(widths[0]) / len(widths), widths[0]


def _json_lines(file: BinaryIO, most: int) -> dict[str, Any]:
    text, about = _head(file)
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
    return {"format": "json", "rows": rows[:most], **about}


def _numpy(file: BinaryIO, most: int) -> dict[str, Any]:
    return _shown(npy(file, most))


def _archive(file: BinaryIO, most: int) -> dict[str, Any]:
    return _shown(npz(file, most))


def _shown(found: dict[str, Any]) -> dict[str, Any]:
    return found | {"rows": [[plain(value) for value in row] for row in found.get("rows", ())]}


def _text(file: BinaryIO, most: int) -> dict[str, Any]:
    text, about = _head(file)
    if text is None:
        return {"format": "binary"}
    return {"format": "text", "rows": [[plain(line)] for line in text.splitlines()[:most]], **about}


def encoding_of(content: bytes, is_cut: bool = False) -> str:
    """Return the encoding of a text: UTF-8 if that is possible, otherwise LATIN. `is_cut`: the last character may be
    incomplete."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(content, final=not is_cut)
    except UnicodeDecodeError:
        return LATIN
    return "utf-8"


def _head(file: BinaryIO) -> tuple[str | None, dict[str, Any]]:
    """Return the start of a text file, decompressed, without a cut last line, and its `encoding` if that is LATIN; None
    and nothing if the file is not text."""
    head = file.read(_HEAD)
    cut = len(head) == _HEAD
    if head[:2] == b"\x1f\x8b":
        unpacking = zlib.decompressobj(wbits=31)
        head = unpacking.decompress(head, _HEAD)
        cut = not unpacking.eof
    content = (cut and head[: head.rfind(b"\n") + 1]) or head
    encoding = encoding_of(content, is_cut=cut)
    if b"\0" in head or (encoding == LATIN and _CONTROLS.search(content)):
        return None, {}
    return content.decode(encoding, "replace"), {"encoding": LATIN} if encoding == LATIN else {}


def npy(file: BinaryIO, most_rows: int) -> dict[str, Any]:
    """Return `format`, `shape`, `dtype`, `rowCount` and, for plain numbers and texts, the first `rows`. A row has one
    element, or the first elements of a row with more dimensions. Raises ValueError if the file is not an array."""
    shape, descr, by_columns = _header(file)
    found: dict[str, Any] = {
        "format": "numpy", "shape": list(shape), "dtype": _type(descr), "rowCount": shape[0] if shape else 1,
    }
    decoded = _decoder(descr)
    # In column order, the elements of a row are spread over the whole file.
    if decoded is None or (by_columns and len(shape) > 1):
        return found
    size, decode = decoded
    width = prod(shape[1:])
    count, shown = min(most_rows, shape[0] if shape else 1), min(width, _ELEMENTS_SHOWN)
    if shown * size > _FARTHEST:
        return found
    rows = []
    for _ in range(count if width else 0):
        row = file.read(shown * size)
        if len(row) < shown * size:
            raise ValueError("the file ends before its last element")
        values = [decode(row[at:at + size]) for at in range(0, len(row), size)]
        rows.append(values if width == shown else [*values, "…"])
        if (width - shown) * size > _FARTHEST:
            break
        _skip(file, (width - shown) * size)
    return found | {"rows": rows}


def npz(file: BinaryIO, most_rows: int) -> dict[str, Any]:
    """Return `format`, the `arrays` with `name`, `shape` and `dtype`, and the first `rows` of the first array. Raises
    ValueError if the file is not an archive of arrays."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = [name for name in archive.namelist() if name.endswith(".npy")]
            arrays: list[dict[str, Any]] = []
            rows: list[list[Any]] = []
            for number, name in enumerate(islice(names, _ARRAYS_SHOWN)):
                with archive.open(name) as inside:
                    found = npy(inside, most_rows if number == 0 else 0)  # type: ignore[arg-type]
                rows = found.get("rows", []) if number == 0 else rows
                arrays.append({"name": name.removesuffix(".npy"), "shape": found["shape"], "dtype": found["dtype"]})
    except (zipfile.BadZipFile, RuntimeError) as problem:
        raise ValueError(f"not an archive of NumPy arrays: {problem}") from None
    return {"format": "numpy archive", "arrays": arrays, "rows": rows}


def _header(file: BinaryIO) -> tuple[tuple[int, ...], Any, bool]:
    """Return the shape, the element type, and whether the elements are in column order."""
    start = file.read(8)
    if start[:6] != b"\x93NUMPY" or len(start) < 8:
        raise ValueError("not a NumPy array")
    form = "<H" if start[6] == 1 else "<I"
    length = struct.unpack(form, file.read(struct.calcsize(form)))[0]
    if length > _LONGEST_HEADER:
        raise ValueError(f"its header is too long ({length} bytes)")
    try:
        found = ast.literal_eval(file.read(length).decode("utf-8" if start[6] > 2 else "latin-1"))
        shape = tuple(found["shape"])
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError):
        raise ValueError("its header is damaged") from None
    if not all(isinstance(size, int) and size >= 0 for size in shape):
        raise ValueError("its header is damaged: it has no valid shape")
    return shape, found.get("descr"), bool(found.get("fortran_order"))


def _type(descr: Any) -> str:
    """Return the name of the element type, such as `float32`; for records the fields."""
    if isinstance(descr, str):
        kind, size = descr[1:2], descr[2:]
        if kind in _TYPES and size.isdecimal() and len(size) < 3:
            return f"{_TYPES[kind]}{8 * int(size)}"
        return f"{_NAMES[kind]}{size.lstrip('8') if kind in 'mM' else ''}" if kind in _NAMES else descr
    return ", ".join(f"{field[0]} {_type(field[1])}" for field in descr) if isinstance(descr, Sequence) else "?"


def _decoder(descr: Any) -> tuple[int, Any] | None:
    """Return the bytes per element and the function that decodes one; None for records, objects and other rare
    types."""
    if not isinstance(descr, str) or len(descr) < 3 or descr[0] not in "<>|=":
        return None
    order = ">" if descr[0] == ">" else "<"
    if descr[1:] in _ELEMENTS:
        one = struct.Struct(order + _ELEMENTS[descr[1:]])
        return one.size, lambda element: one.unpack(element)[0]
    if descr[1] in "SU" and descr[2:].isdecimal() and int(descr[2:]):
        if descr[1] == "S":
            return int(descr[2:]), lambda element: element.rstrip(b"\0").decode("utf-8", "replace")
        coding = "utf-32-be" if order == ">" else "utf-32-le"
        return 4 * int(descr[2:]), lambda element: element.decode(coding, "replace").rstrip("\0")
    return None


def _skip(file: BinaryIO, size: int) -> None:
    if file.seekable():
        file.seek(size, 1)
        return
    while size > 0 and (passed := len(file.read(min(size, 1 << 20)))):
        size -= passed


_READERS: dict[str, Callable[[BinaryIO, int], dict[str, Any]]] = {
    "parquet": _parquet, "pq": _parquet, "csv": _csv, "tsv": _csv, "jsonl": _json_lines, "ndjson": _json_lines,
    "npy": _numpy, "npz": _archive,
}
