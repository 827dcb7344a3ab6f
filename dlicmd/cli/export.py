"""Tables of values in files for other programs: CSV or Parquet."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

from dlicmd.cli.config import small_file
from dlicmd.sdk.errors import UsageProblem

OPTION = "--export"
_CSV, _PARQUET = ".csv", ".parquet"
#: What formulas of spreadsheets begin with.
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")
#: Numbers, and names of options.
_HARMLESS = re.compile(r"[-+]?[0-9.]+(e[-+]?[0-9]+)?|--?[A-Za-z][\w.-]*", re.IGNORECASE)


def checked(name: str | None, option: str = OPTION) -> str | None:
    """Return the name of a file to write, or None if the option is not given. Raises UsageProblem if the file has
    another format or cannot be written, or if the library for its format is not installed."""
    if name is None:
        return None
    if not name.lower().endswith((_CSV, _PARQUET)):
        raise UsageProblem(f"{option}: '{name}' does not end with {_CSV} or {_PARQUET}")
    small_file.check_writable(option, name)
    if name.lower().endswith(_PARQUET):
        try:
            import pyarrow  # noqa: F401 - for this format alone
        except ImportError:
            raise UsageProblem(f"{option} {name}: Parquet needs the package pyarrow: pip install pyarrow, or choose a "
                               f"name that ends with {_CSV}") from None
    return name


def write(
    name: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str],
    option: str = OPTION,
) -> None:
    """Write rows to a file that `checked` returned. An existing file is replaced, all of it or nothing. A missing value
    is an empty field of CSV, and null in Parquet. Raises UsageProblem."""
    make = _parquet if name.lower().endswith(_PARQUET) else _csv
    small_file.write(option, name, make(rows, columns))


def _csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> bytes:
    import csv  # only for this format

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_as_text, columns))
    writer.writerows([_as_text(row.get(column)) for column in columns] for row in rows)
    return text.getvalue().encode(errors="replace")


def _as_text(value: Any) -> Any:
    """Return a value of CSV. A spreadsheet would compute a text that begins like a formula, such as the name of a job
    of another user. An apostrophe before it makes it a text there."""
    is_formula = isinstance(value, str) and value.startswith(_FORMULAS) and not _HARMLESS.fullmatch(value)
    return f"'{value}" if is_formula else value


def _parquet(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays = [_array(pa, [row.get(column) for row in rows]) for column in columns]
    made = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(arrays, list(columns)), made)
    return made.getvalue()


def _array(pa: Any, values: list[Any]) -> Any:
    """Return values as a column: numbers, truth values, or texts. Values of different types become texts."""
    known = [value for value in values if value is not None]
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in known) and known:
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    if all(isinstance(value, bool) for value in known) and known:
        return pa.array(values, pa.bool_())
    texts = [None if value is None else str(value).encode(errors="replace").decode() for value in values]
    return pa.array(texts, pa.string())
