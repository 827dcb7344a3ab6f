"""Parquet files as a data set: rows in the order of the file names, and then of the rows in each file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fabric_data import unpacked
from fabric_data.arrays import FloatType, numpy_type
from fabric_data.columns import Writer, element_of, kind_of, reader
from fabric_data.errors import DataProblem
from fabric_data.groups import ColumnGroup, Columns, groups
from fabric_data.places import Remote
from fabric_data.samples import Samples
from fabric_data.stand_ins import stand_in

if TYPE_CHECKING:
    import pyarrow

#: The column of a table of documents that holds the fields without a column of their own; null in most rows.
REST = "_rest"
#: Rows that are unpacked at a time.
_ROWS = 8192


class Table(Samples):
    """Sample i is row i. Unpickling opens the files again."""

    sample, whole = "row", "the table has"

    def __init__(
        self, place: Path | str, files: Sequence[Path | Remote], columns: Columns | None, *, dtype: FloatType | None,
        fill: Mapping[str, Any], transform: Callable[[Any], Any] | None,
    ) -> None:
        if not isinstance(fill, Mapping):
            raise DataProblem(f"'fill' must map columns to values, such as {{'age': -1}}, not {fill!r}")
        super().__init__(transform)
        self._place, self._files, self._fill = place, list(files), dict(fill)
        self._float_type: np.dtype[Any] | None = None if dtype is None else numpy_type(dtype)
        self._named = columns is None
        schema, self._length = _survey(self._files)
        self._groups = [
            ColumnGroup((name,)) for name in schema.names if name != REST or name in self._fill
        ] if columns is None else groups(columns)
        self._names = [group.names[0] for group in self._groups]
        self._schema = _selected(place, schema, self._groups, self._fill)
        for name in self._fill:
            with _about(place, (name,)):
                self._instead(name, self._schema.field(name).type)
        self._open()

    def _open(self) -> None:
        wanted = {"groups": [[group.tensor, *group.names] for group in self._groups], "type": str(self._float_type),
                  "fill": {name: repr(value) for name, value in self._fill.items()}}
        folder = unpacked.entry(unpacked.key_of(self._files, wanted), self._unpack)
        self._readers = [
            reader(_file(folder, number), kind_of(types), element_of(types[0], self._float_type))
            for number, types in enumerate(self._types())
        ]

    def _types(self) -> list[list[Any]]:
        return [[self._schema.field(name).type for name in group.names] for group in self._groups]

    def _unpack(self, folder: Path) -> None:
        writers = []
        for number, (group, types) in enumerate(zip(self._groups, self._types(), strict=True)):
            with _about(self._place, group.names):
                writers.append(Writer(_file(folder, number), types, self._length, self._float_type, group.tensor))
        for path, batch in self._batches():
            for group, writer in zip(self._groups, writers, strict=True):
                with _about(path, group.names):
                    writer.put([self._complete(batch.column(name), name) for name in group.names])
        for writer in writers:
            writer.close()

    def _batches(self) -> Iterator[tuple[Path | Remote, pyarrow.RecordBatch]]:
        import pyarrow as pa

        names = list(dict.fromkeys(name for group in self._groups for name in group.names))
        for path in self._files:
            try:
                with _opened(path) as file:
                    for batch in file.iter_batches(_ROWS, columns=names):
                        yield path, batch
            except (pa.ArrowInvalid, OSError) as problem:
                raise DataProblem(f"{path} is damaged: {problem}") from None

    def _complete(self, column: pyarrow.Array, name: str) -> pyarrow.Array:
        """Return the column without missing values, except those that can be NaN. Raises DataProblem."""
        import pyarrow.types as t

        if t.is_dictionary(column.type):
            column = column.dictionary_decode()
        if column.null_count and name in self._fill:
            column = column.fill_null(self._instead(name, column.type))
        if column.null_count and not (t.is_floating(column.type) or t.is_decimal(column.type)):
            raise DataProblem(f"it has missing values; give a replacement with fill={{'{name}': ...}}")
        if t.is_list(column.type) or t.is_large_list(column.type) or t.is_fixed_size_list(column.type):
            inner = column.flatten()
            if inner.null_count and not t.is_floating(inner.type):
                raise DataProblem("its lists have missing values")
        return column

    def _instead(self, name: str, kind: pyarrow.DataType) -> pyarrow.Scalar:
        """Return the replacement for missing values in a column of this type. Raises DataProblem."""
        return stand_in(self._fill[name], kind, self._float_type)

    def __len__(self) -> int:
        return self._length

    def _sample(self, number: int) -> Any:
        parts = [read(number) for read in self._readers]
        return dict(zip(self._names, parts, strict=True)) if self._named else tuple(parts)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_readers"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def __repr__(self) -> str:
        shown = ", ".join(f"{name} {self._schema.field(name).type}" for group in self._groups
                          for name in group.names)
        return f"<{self._length} rows of {self._place}: {shown}>"


class _about:
    """Adds the file and the columns to the text of a DataProblem."""

    def __init__(self, place: Path | Remote | str, group: Sequence[str]) -> None:
        self._where = f"{place}: column {' and '.join(group[:3])}" + (" and more" if len(group) > 3 else "")

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: Any, problem: BaseException | None, _trace: Any) -> None:
        if isinstance(problem, DataProblem):
            raise DataProblem(f"{self._where}: {problem}") from None


def _file(folder: Path, number: int) -> Path:
    return folder / f"{number}.npy"


def _opened(file: Path | Remote) -> pyarrow.parquet.ParquetFile:
    import pyarrow.parquet as pq

    return pq.ParquetFile(file.opened() if isinstance(file, Remote) else file)


def _survey(files: list[Path | Remote]) -> tuple[pyarrow.Schema, int]:
    """Return (the schema that all files have, the number of rows of all files). Raises DataProblem."""
    try:
        import pyarrow as pa
    except ImportError:
        raise DataProblem("tables need pyarrow: pip install pyarrow") from None
    schema, rows = None, 0
    for path in files:
        try:
            with _opened(path) as file:
                found, count = file.schema_arrow.remove_metadata(), file.metadata.num_rows
        except (pa.ArrowInvalid, OSError) as problem:
            raise DataProblem(f"{path} is not a Parquet file: {problem}") from None
        if schema is not None and found != schema:
            raise DataProblem(f"the columns of {path} differ from those of {files[0]}")
        schema, rows = found, rows + count
    return schema, rows


def _selected(
    place: Path | str, schema: pyarrow.Schema, groups: Sequence[ColumnGroup], fill: Mapping[str, Any]
) -> pyarrow.Schema:
    """Return the schema, with the value type in place of each dictionary. Raises DataProblem for missing columns."""
    import pyarrow as pa
    import pyarrow.types as t

    for name in [*(name for group in groups for name in group.names), *fill]:
        if not isinstance(name, str) or name not in schema.names:
            raise DataProblem(f"there is no column '{name}' in {place}; the columns are {', '.join(schema.names[:50])}")
    return pa.schema([
        pa.field(item.name, item.type.value_type if t.is_dictionary(item.type) else item.type) for item in schema
    ])
