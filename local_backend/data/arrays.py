"""The first rows of NumPy files, parsed by the format's definition (NumPy enhancement proposal 1): NumPy is a library
of the program, not of the server. `.npy` is an array, `.npz` is an archive of arrays."""

from __future__ import annotations

import ast
import struct
from collections.abc import Sequence
from itertools import islice
from math import prod
from typing import Any, BinaryIO

#: Kind and size of an element → format character of `struct`.
_ELEMENTS = {
    "b1": "?", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q", "f2": "e",
    "f4": "f", "f8": "d",
}
_LONGEST_HEADER = 64 * 1024
#: Most elements of a row, and most arrays of an archive, that are shown.
_WIDEST, _MOST = 16, 100
#: Bytes from one row to the next above which only the first row is shown: skipped bytes may have to be fetched or
#: decompressed. No row is shown if its first elements have more bytes.
_FARTHEST = 1 << 20


def npy(file: BinaryIO, most_rows: int) -> dict[str, Any]:
    """Return `format`, `shape`, `dtype`, `rowCount` and, for plain numbers and texts, the first `rows`. A row has one
    element, or the first elements of a row with more dimensions. Raises ValueError if the file is no array."""
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
    count, shown = min(most_rows, shape[0] if shape else 1), min(width, _WIDEST)
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
    ValueError if the file is no archive of arrays."""
    import zipfile

    try:
        with zipfile.ZipFile(file) as archive:
            names = [name for name in archive.namelist() if name.endswith(".npy")]
            arrays: list[dict[str, Any]] = []
            rows: list[list[Any]] = []
            for number, name in enumerate(islice(names, _MOST)):
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
    """Return the element type as NumPy writes it, such as `<f4`; for records the fields."""
    if isinstance(descr, str):
        return descr
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
