"""Data sets for training programs: Parquet tables, NumPy arrays and images in folders, opened with one call.

    import fabric_data

    train = fabric_data.open(columns=["pixels", "digit"])        # the data in DATA_DIR
    names = fabric_data.open("/data/names.parquet")              # a file, or a folder
    photos = fabric_data.open("photos")                          # a data source of the job, by its name

Every data set is map-style: it has a length, and any sample can be read at any time, at low cost. So workers may
join and leave, and each sample is still seen exactly once. Every process has the same samples in the same order. No
backend is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import Any

from torch.utils.data import Dataset

from fabric_data.arrays import Arrays, FloatType
from fabric_data.errors import DataProblem
from fabric_data.groups import Columns
from fabric_data.images import SUFFIXES, Images
from fabric_data.places import Source, files_below, sources, streamed, where
from fabric_data.table import Table

__all__ = ["DataProblem", "Source", "open", "sources"]


def open(
    source: str | PathLike[str] | None = None,
    columns: Columns | None = None,
    *,
    dtype: FloatType | None = None,
    fill: dict[str, Any] | None = None,
    transform: Callable[[Any], Any] | None = None,
) -> Dataset[Any]:
    """Open a data set.

    The files decide the kind of data set: `*.parquet` is a table, `*.npy` are arrays of one length, folders with
    pictures are classes. A list is a tensor of shape [length], a whole number an int, another number a NumPy scalar
    of the type of its column (a DataLoader makes tensors of that type), text is str, bytes are bytes.

    Args:
        source: a path, or the name of a data source of this job; by default, DATA_DIR.
        columns: the columns of a table, or the names of arrays, of a sample. A list of columns in it, as in
            `columns=[["x", "y"], "label"]`, becomes one tensor of shape [number of columns].
        dtype: the type that floating-point columns get: float16, float32 or float64, of torch, of NumPy or as a text.
        fill: column → value that replaces missing values; without it, missing floating-point numbers are NaN.
        transform: called with each sample; its result replaces the sample.

    Returns:
        A data set with a length. A sample of a table or of arrays is a tuple in the order of `columns`, or a dict of
        all columns when none are named. This dict is without `_rest`, unless `fill` names it: `_rest` has the fields
        of documents that have no column. A sample of one `.npy` file is a tensor, or a number. A sample of pictures
        is a uint8 tensor of shape [3, height, width], and the class number, in the order of the class names.

    Raises:
        DataProblem: there are no data, or they cannot be read.
    """
    if remote := streamed(source):
        other = [str(file) for file in remote if not file.url.lower().endswith(".parquet")]
        if other:
            raise DataProblem(f"{other[0]} is a stream, but only *.parquet can be streamed; submit without "
                              "\"access\": \"stream\", or read it through fsspec")
        return Table(str(source or remote[0]), remote, columns, dtype=dtype, fill=fill or {}, transform=transform)
    place = where(source)
    if found := files_below(place, (".parquet",)):
        return Table(place, found, columns, dtype=dtype, fill=fill or {}, transform=transform)
    if fill:
        raise DataProblem("'fill' works only for tables, but there is no *.parquet file in " + str(place))
    if found := files_below(place, (".npy",)):
        return Arrays(place, found, columns, dtype=dtype, transform=transform)
    if found := files_below(place, SUFFIXES):
        if columns is not None or dtype is not None:
            raise DataProblem(f"{place} contains pictures, which have no columns; use 'transform'")
        return Images(place, found, transform)
    raise DataProblem(f"{place} contains no known data; fabric_data reads *.parquet, *.npy and pictures in folders")


