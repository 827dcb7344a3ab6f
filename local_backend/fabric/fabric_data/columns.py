"""Columns of a table on disk: written batch by batch from Arrow, read by row from mapped memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fabric_data.arrays import SIGNED_MOST, WIDER, mapped, picker
from fabric_data.errors import DataProblem

if TYPE_CHECKING:
    import pyarrow



class Writer:
    """Writes one column of `rows` rows, or, as a `tensor`, several columns of numbers side by side."""

    def __init__(
        self, path: Path, types: list[Any], rows: int, float_type: np.dtype[Any] | None, tensor: bool
    ) -> None:
        """Raises DataProblem for types that cannot be sampled."""
        _check_together(types, tensor)
        self._path, self._rows, self._float_type = path, rows, float_type
        self._at = self._end = 0
        self.ragged = len(types) == 1 and _is_ragged(types[0])
        if self.ragged:
            self._offsets: Any = np.lib.format.open_memmap(_offsets(path), "w+", np.dtype("int64"), (rows + 1,))
            self._values = _values(path).open("wb")
            self._offsets[0] = 0
        else:
            found = [_element(kind) for kind in types]
            element: np.dtype[Any] = np.result_type(*(self._final(item) for item, _ in found))
            size = found[0][1] or (len(types) if tensor else 0)
            width = [size] if size else []
            self._array: Any = np.lib.format.open_memmap(path, "w+", element, (rows, *width)) if rows else \
                np.empty((0, *width), element)

    def _final(self, element: np.dtype[Any]) -> np.dtype[Any]:
        element = WIDER.get(element, element)
        return self._float_type if self._float_type is not None and element.kind == "f" else element

    def put(self, parts: list[pyarrow.Array]) -> None:
        """Write the next rows. Raises DataProblem for values that no tensor can hold."""
        if self.ragged:
            self._put_ragged(parts[0])
            return
        size = len(parts[0])
        rows = self._array[self._at:self._at + size]
        for number, part in enumerate(parts):
            place = rows[:, number] if len(parts) > 1 else rows
            place[...] = _numbers(part).reshape(place.shape)
        self._at += size

    def _put_ragged(self, part: pyarrow.Array) -> None:
        lengths, values = _pieces(part)
        size = len(part)
        ends = self._end + np.cumsum(lengths, dtype=np.int64)
        self._offsets[self._at + 1:self._at + 1 + size] = ends
        self._values.write(np.ascontiguousarray(self._cast(values)).view(np.uint8).data)
        self._end = int(ends[-1]) if size else self._end
        self._at += size

    def _cast(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return values.astype(self._final(values.dtype), copy=False)

    def close(self) -> None:
        """Finish the files after the last row."""
        if self.ragged:
            self._values.close()
            self._offsets.flush()
        elif self._rows:
            self._array.flush()
        else:
            np.save(self._path, self._array)


def reader(path: Path, kind: str, element: str) -> Callable[[int], Any]:
    """Return a function that returns a copy of the value of a row in a column. Raises DataProblem.

    `kind`: number, list, text or bytes. `element` is the NumPy type of the numbers in a list.
    """
    if kind == "number":
        return picker(mapped(path), None)
    offsets = np.asarray(np.load(_offsets(path), mmap_mode="r"))
    of = np.dtype(element) if kind == "list" else np.dtype("uint8")
    data = np.asarray(np.memmap(_values(path), of, "r")) if _values(path).stat().st_size else np.empty(0, of)

    def piece(row: int) -> np.ndarray[Any, Any]:
        return data[offsets[row]:offsets[row + 1]]

    if kind == "list":
        return lambda row: torch.from_numpy(piece(row).copy())
    return (lambda row: piece(row).tobytes().decode()) if kind == "text" else (lambda row: piece(row).tobytes())


def kind_of(types: list[Any]) -> str:
    """Return how `reader` reads columns of these Arrow types: number, list, text or bytes."""
    import pyarrow.types as t

    kind = types[0]
    if len(types) > 1 or not _is_ragged(kind):
        return "number"
    if _is_list(kind):
        return "list"
    return "text" if t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind) else "bytes"


def element_of(kind: Any, float_type: np.dtype[Any] | None) -> str:
    """Return the NumPy type of the numbers in a list column, as text; "" for other columns. Raises DataProblem."""
    if not _is_list(kind):
        return ""
    element: np.dtype[Any] = _element(kind.value_type)[0]
    element = WIDER.get(element, element)
    return str(float_type if float_type is not None and element.kind == "f" else element)


def _offsets(path: Path) -> Path:
    return path.with_suffix(".offsets.npy")


def _values(path: Path) -> Path:
    return path.with_suffix(".values")


def _is_list(kind: Any) -> bool:
    import pyarrow.types as t

    return bool(t.is_list(kind) or t.is_large_list(kind))


def _is_ragged(kind: Any) -> bool:
    import pyarrow.types as t

    texts = (t.is_string, t.is_large_string, t.is_string_view, t.is_binary, t.is_large_binary, t.is_binary_view,
             t.is_fixed_size_binary)
    return _is_list(kind) or any(is_one(kind) for is_one in texts)


def _check_together(types: list[Any], tensor: bool) -> None:
    """Raise DataProblem for a column that cannot be in a tensor with others, or in any tensor."""
    import pyarrow.types as t

    for kind in types if tensor else ():
        listed = _is_list(kind) or t.is_fixed_size_list(kind)
        if listed and len(types) > 1:
            raise DataProblem("a list column cannot be joined with other columns into one tensor")
        if _is_ragged(kind) and not listed:
            raise DataProblem(f"a tensor cannot hold {kind}; name the column outside the inner list")


def _element(kind: Any) -> tuple[np.dtype[Any], int]:
    """Return (NumPy type of a number, numbers per row; 0 for a single number). Raises DataProblem."""
    import pyarrow.types as t

    if t.is_fixed_size_list(kind):
        element, inner = _element(kind.value_type)
        if not inner:
            return element, kind.list_size
    elif t.is_boolean(kind) or t.is_integer(kind) or t.is_floating(kind):
        return np.dtype(kind.to_pandas_dtype()), 0
    elif t.is_decimal(kind):
        return np.dtype("float64"), 0
    elif t.is_temporal(kind) and not t.is_interval(kind):
        return np.dtype("int64"), 0
    raise DataProblem(f"a sample cannot hold {kind}; name only other columns in 'columns'")


def _numbers(part: pyarrow.Array) -> np.ndarray[Any, Any]:
    """Return a column as a flat array. Only floating-point values may be missing. Raises DataProblem."""
    import pyarrow as pa
    import pyarrow.types as t

    kind = part.type
    if t.is_fixed_size_list(kind):
        return _numbers(part.flatten())
    if t.is_decimal(kind):
        part = part.cast(pa.float64())
    elif t.is_temporal(kind):
        narrow = pa.int32() if kind.bit_width == 32 else pa.int64()
        part = part.cast(narrow)
    found: np.ndarray[Any, Any] = part.to_numpy(zero_copy_only=False)
    if found.dtype == np.dtype("uint64") and len(found) and found.max() > SIGNED_MOST:
        raise DataProblem(f"{found.max()} is too large for a tensor of whole numbers")
    return found


def _pieces(part: pyarrow.Array) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return (length of each row, all values one after the other) of a column of lists, text or bytes."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as t

    if _is_list(part.type):
        lengths = pc.list_value_length(part).to_numpy(zero_copy_only=False)
        return lengths, _numbers(part.flatten())
    if t.is_fixed_size_binary(part.type):
        part = part.cast(pa.binary())
    part = part.cast(pa.large_binary())
    offsets = np.frombuffer(part.buffers()[1], np.int64)[part.offset:part.offset + len(part) + 1]
    data = part.buffers()[2]
    values = np.frombuffer(data, np.uint8)[offsets[0]:offsets[-1]] if data is not None else np.empty(0, np.uint8)
    return np.diff(offsets), values
