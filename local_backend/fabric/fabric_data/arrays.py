"""NumPy arrays as data sets: mapped into memory, so that a file may be larger than that, and workers share it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from fabric_data.errors import DataProblem

#: What torch has no tensors of, or can do little with → what holds the same numbers.
WIDER: dict[np.dtype[Any], np.dtype[Any]] = {
    np.dtype("uint16"): np.dtype("int32"), np.dtype("uint32"): np.dtype("int64"), np.dtype("uint64"): np.dtype("int64"),
}


def numpy_type(dtype: torch.dtype) -> np.dtype[Any]:
    """The same type in NumPy. Raises DataProblem."""
    if not dtype.is_floating_point or dtype not in (torch.float16, torch.float32, torch.float64):
        raise DataProblem(f"dtype={dtype}: choose torch.float16, torch.float32 or torch.float64")
    return torch.empty(0, dtype=dtype).numpy().dtype


def mapped(path: Path) -> np.ndarray[Any, Any]:
    """The array of a .npy file, over the mapped file: reading costs what is touched. Raises DataProblem."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as problem:
        raise DataProblem(f"{path} is not an array that can be mapped: {problem}") from None
    # Indexing a memmap itself makes a memmap each time, which is slow.
    return np.asarray(array)


def picker(array: np.ndarray[Any, Any], float_type: np.dtype[Any] | None) -> Callable[[int], Any]:
    """What gives a copy of an element: who changes a sample must not change the data set. Numbers that stand alone are
    int, bool, or NumPy scalars, which tell a DataLoader their type. Raises DataProblem."""
    final = WIDER.get(array.dtype, array.dtype).newbyteorder("=")
    if float_type is not None and final.kind == "f":
        final = float_type
    try:
        torch.from_numpy(np.empty(0, final))
    except TypeError:
        raise DataProblem(f"there are no tensors of {array.dtype}") from None
    if array.ndim > 1:
        return lambda row: torch.from_numpy(array[row].astype(final))
    if final.kind in "iub":
        return array.item
    return array.__getitem__ if final == array.dtype else lambda row: final.type(array[row])


class Arrays(Dataset[Any]):
    """Arrays of one length; sample i has element i of each. Opened again where it is unpickled."""

    def __init__(
        self, place: Path, files: Sequence[Path], columns: Sequence[Any] | None, *,
        dtype: torch.dtype | None, transform: Callable[[Any], Any] | None,
    ) -> None:
        self._float_type = None if dtype is None else numpy_type(dtype)
        self._transform = transform
        #: One file that was named: a sample is a tensor of its own.
        self._alone = place.is_file() and columns is None
        self._named = columns is None
        known = {file.stem: file for file in files}
        if len(known) < len(files):
            raise DataProblem(f"two arrays in {place} have the same name; open a folder that holds one of them")
        for name in columns or ():
            if name not in known:
                raise DataProblem(f"there is no array '{name}' in {place}; there are {', '.join(known)}")
        self._files = {name: known[name] for name in (known if columns is None else columns)}
        self._open()

    def _open(self) -> None:
        self._arrays = {name: mapped(file) for name, file in self._files.items()}
        pickers = []
        for name, array in self._arrays.items():
            if array.ndim == 0:
                raise DataProblem(f"{self._files[name]} holds a single number, not an array")
            try:
                pickers.append(picker(array, self._float_type))
            except DataProblem as problem:
                raise DataProblem(f"{self._files[name]}: {problem}") from None
        lengths = {name: len(array) for name, array in self._arrays.items()}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise DataProblem(f"the arrays have different lengths: {told}")
        self._pickers, self._length = pickers, next(iter(lengths.values()))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        if not -self._length <= index < self._length:
            raise IndexError(f"there is no element {index}: the arrays have {self._length}")
        parts = [pick(index) for pick in self._pickers]
        sample: Any = dict(zip(self._arrays, parts, strict=True)) if self._named else tuple(parts)
        if self._alone:
            (sample,) = parts
        return sample if self._transform is None else self._transform(sample)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_arrays", "_pickers")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in self._arrays.items())
        size = sum(array.nbytes for array in self._arrays.values())
        return f"<{len(self)} samples of arrays: {shapes}; {size} bytes>"
