"""NumPy arrays as data sets. Files are mapped, so a file may be larger than the memory, and workers share it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fabric_data.errors import DataProblem
from fabric_data.groups import Columns, groups
from fabric_data.samples import Samples

#: Types of floating-point numbers that a caller can ask for.
FloatType = torch.dtype | np.dtype[Any] | type[Any] | str
#: The largest whole number that a tensor can hold.
SIGNED_MOST = 2**63 - 1
_FLOATS = ("float16", "float32", "float64")
#: Types without tensors in torch, or with little support there → a type that holds the same numbers.
WIDER: dict[np.dtype[Any], np.dtype[Any]] = {
    np.dtype("uint16"): np.dtype("int32"), np.dtype("uint32"): np.dtype("int64"), np.dtype("uint64"): np.dtype("int64"),
}


def numpy_type(dtype: FloatType) -> np.dtype[Any]:
    """Return the same type in NumPy. Raises DataProblem."""
    try:
        name = str(dtype).removeprefix("torch.") if isinstance(dtype, torch.dtype) else np.dtype(dtype).name
    except (TypeError, ValueError, SyntaxError):  # NumPy reads some texts as a list of types
        name = ""
    if name not in _FLOATS:
        raise DataProblem(f"dtype={dtype}: choose torch.float16, torch.float32 or torch.float64")
    return np.dtype(name)


def mapped(path: Path) -> np.ndarray[Any, Any]:
    """Return the array of a .npy file as a mapped file: only accessed parts are read. Raises DataProblem."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as problem:
        raise DataProblem(f"{path} cannot be mapped as an array: {problem}") from None
    # Indexing a memmap itself creates a memmap each time, which is slow.
    return np.asarray(array)


def picker(array: np.ndarray[Any, Any], float_type: np.dtype[Any] | None) -> Callable[[int], Any]:
    """Return a function that returns a copy of an element: a change to a sample must not change the data set. Single
    numbers are int, bool, or NumPy scalars, from which a DataLoader learns their type. Raises DataProblem."""
    final = _final(array, float_type)
    if array.ndim > 1:
        return lambda row: torch.from_numpy(_signed(array[row]).astype(final))
    if final.kind in "iub":
        return array.item
    return array.__getitem__ if final == array.dtype else lambda row: final.type(array[row])


def _signed(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the numbers, if a tensor can hold them: there are no tensors of uint64. Raises DataProblem."""
    if numbers.dtype.kind == "u" and numbers.dtype.itemsize == 8 and numbers.size and numbers.max() > SIGNED_MOST:
        raise DataProblem(f"{numbers.max()} is too large for a tensor of whole numbers")
    return numbers


def joiner(arrays: Sequence[np.ndarray[Any, Any]], float_type: np.dtype[Any] | None) -> Callable[[int], torch.Tensor]:
    """Return a function that returns the elements of several arrays as one tensor. Raises DataProblem."""
    if len(arrays) == 1 and arrays[0].ndim > 1:
        return picker(arrays[0], float_type)
    if any(array.ndim > 1 for array in arrays):
        raise DataProblem("an array of several dimensions cannot be joined with other arrays into one tensor")
    final = np.result_type(*(_final(array, float_type) for array in arrays))
    return lambda row: torch.from_numpy(np.array([_signed(array[row]) for array in arrays], final))


def _final(array: np.ndarray[Any, Any], float_type: np.dtype[Any] | None) -> np.dtype[Any]:
    """Return the type of the array's numbers in a sample. Raises DataProblem."""
    final = WIDER.get(array.dtype, array.dtype).newbyteorder("=")
    if float_type is not None and final.kind == "f":
        final = float_type
    try:
        torch.from_numpy(np.empty(0, final))
    except TypeError:
        raise DataProblem(f"torch has no tensors of type {array.dtype}") from None
    return final


class Arrays(Samples):
    """Arrays of one length. Sample i has element i of each array. Unpickling opens the files again."""

    sample, whole = "element", "the arrays have"

    def __init__(
        self, place: Path, files: Sequence[Path], columns: Columns | None, *,
        dtype: FloatType | None, transform: Callable[[Any], Any] | None,
    ) -> None:
        self._float_type = None if dtype is None else numpy_type(dtype)
        super().__init__(transform)
        #: Whether the data set is one named file without columns: a sample is then a tensor or number of its own.
        self._alone = place.is_file() and columns is None
        self._named = columns is None
        known = {file.stem: file for file in files}
        if len(known) < len(files):
            raise DataProblem(f"two arrays in {place} have the same name; open a folder with only one of them")
        self._groups = groups(list(known) if columns is None else columns)
        names = [name for group in self._groups for name in group.names]
        for name in names:
            if name not in known:
                raise DataProblem(f"there is no array '{name}' in {place}; the arrays are {', '.join(known)}")
        self._files = {name: known[name] for name in names}
        self._open()

    def _open(self) -> None:
        self._arrays = {name: mapped(file) for name, file in self._files.items()}
        for name, array in self._arrays.items():
            if array.ndim == 0:
                raise DataProblem(f"{self._files[name]} holds a single number, not an array")
        pickers: list[Callable[[int], Any]] = []
        for group in self._groups:
            arrays = [self._arrays[name] for name in group.names]
            try:
                pickers.append(
                    joiner(arrays, self._float_type) if group.tensor else picker(arrays[0], self._float_type)
                )
            except DataProblem as problem:
                files = " and ".join(str(self._files[name]) for name in group.names)
                raise DataProblem(f"{files}: {problem}") from None
        lengths = {name: len(array) for name, array in self._arrays.items()}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise DataProblem(f"the arrays have different lengths: {told}")
        self._pickers, self._length = pickers, next(iter(lengths.values()))

    def __len__(self) -> int:
        return self._length

    def _sample(self, number: int) -> Any:
        parts = [pick(number) for pick in self._pickers]
        if self._alone:
            return parts[0]
        return dict(zip(self._arrays, parts, strict=True)) if self._named else tuple(parts)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_arrays", "_pickers")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in self._arrays.items())
        size = sum(array.nbytes for array in self._arrays.values())
        return f"<{len(self)} samples of arrays: {shapes}; {size} bytes>"
