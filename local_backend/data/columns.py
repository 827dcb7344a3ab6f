"""Columns from rows of Python values: the type of each column, and batches of limited size."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime, time, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from local_backend.data.errors import DataError

if TYPE_CHECKING:
    import pyarrow

#: Bytes of a batch, and rows of the first batch, whose row width is still unknown.
BATCH_BYTES = 8 * 2**20
FIRST_ROWS = 200
_MOST_ROWS = 50_000
#: Digits of the widest decimal.
_DIGITS = 76


def columns_of(schema: Any) -> list[dict[str, str]]:
    """Return the columns of a pyarrow schema as users see them: name and type."""
    return [{"name": column.name, "type": str(column.type)} for column in schema]


def decimal(precision: int | None, scale: int | None) -> pyarrow.DataType:
    """Return a decimal of this precision and scale; text if they are unknown or out of range."""
    import pyarrow

    scale = scale or 0
    if precision is None or not 0 < precision <= _DIGITS or not 0 <= scale <= precision:
        return pyarrow.string()
    return pyarrow.decimal128(precision, scale) if precision <= 38 else pyarrow.decimal256(precision, scale)


def seen_type(values: Sequence[Any]) -> pyarrow.DataType:
    """Return the type of a column from some of its values. Types that do not fit together, and no values at all, become
    text."""
    import pyarrow

    kinds = {_kind(value) for value in values if value is not None}
    if kinds == {"int", "float"}:
        kinds = {"float"}
    if kinds == {"int", "uint"} and all(value is None or value >= 0 for value in values):
        kinds = {"uint"}
    types: dict[str, pyarrow.DataType] = {
        "bool": pyarrow.bool_(), "int": pyarrow.int64(), "uint": pyarrow.uint64(), "float": pyarrow.float64(),
        "date": pyarrow.date32(), "datetime": pyarrow.timestamp("us"), "instant": pyarrow.timestamp("us", "UTC"),
        "time": pyarrow.time64("us"), "timedelta": pyarrow.duration("us"), "bytes": pyarrow.binary(),
    }
    if kinds == {"Decimal"}:
        return _seen_decimal(value for value in values if value is not None)
    return types.get(kinds.pop(), pyarrow.string()) if len(kinds) == 1 else pyarrow.string()


def _seen_decimal(values: Iterable[Decimal]) -> pyarrow.DataType:
    """Return a decimal with as many digits after the point as the values have, and spare digits before it. NaN and
    infinities become text."""
    whole = scale = 0
    for value in values:
        parts = value.as_tuple()
        if not isinstance(parts.exponent, int):
            return decimal(None, None)
        scale = max(scale, -parts.exponent)
        whole = max(whole, len(parts.digits) + parts.exponent)
    return decimal(38 if whole + scale <= 28 else _DIGITS, scale)


def _kind(value: Any) -> str:
    if isinstance(value, datetime):
        return "instant" if value.tzinfo else "datetime"
    if isinstance(value, int) and not isinstance(value, bool):
        return "int" if -2**63 <= value < 2**63 else "uint" if 0 <= value < 2**64 else "text"
    if isinstance(value, bytes | bytearray | memoryview):
        return "bytes"
    return type(value).__name__


def batches(rows: Callable[[int], Sequence[Sequence[Any]]],
            schema: pyarrow.Schema) -> Iterator[pyarrow.RecordBatch]:
    """Yield batches of the rows that `rows` returns. `rows` gets the wanted number of rows, and returns none at the
    end.

    Raises DataError for a value that does not fit its column.
    """
    wish = FIRST_ROWS
    while found := rows(wish):
        batch = to_batch(found, schema)
        yield batch
        # Rows may get wider, so no batch has many times the rows of the batch before.
        width = max(1, batch.nbytes // len(found))
        wish = max(1, min(_MOST_ROWS, wish * 8, BATCH_BYTES // width))


def to_batch(rows: Sequence[Sequence[Any]], schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    """Return the rows as a batch with the columns of `schema`. Raises DataError."""
    import pyarrow

    columns = zip(*rows, strict=True)
    return pyarrow.RecordBatch.from_arrays(
        [_column(field, values) for field, values in zip(schema, columns, strict=True)], schema=schema)


def _column(field: pyarrow.Field, values: Sequence[Any]) -> pyarrow.Array:
    import pyarrow

    convert = _converter(field.type)
    try:
        ready = values if convert is None else [None if value is None else convert(value) for value in values]
        return pyarrow.array(ready, field.type)
    except (pyarrow.ArrowException, ArithmeticError, TypeError, ValueError) as problem:
        raise DataError(f"column '{field.name}' has a value that is not a valid {field.type}: "
                        f"{str(problem)[:200]}; use a query that casts it") from None


def _converter(kind: pyarrow.DataType) -> Callable[[Any], Any] | None:
    """Return the function that makes a driver's value fit the type; None if values fit as they are."""
    from pyarrow import types

    if types.is_string(kind):
        return as_text
    if types.is_timestamp(kind):
        return _instant if kind.tz else _local
    table: tuple[tuple[Callable[[Any], bool], Callable[[Any], Any]], ...] = (
        (types.is_boolean, _truth), (types.is_integer, _whole), (types.is_floating, float), (types.is_decimal, _exact),
        (types.is_binary, _bytes), (types.is_date, _day),
    )
    return next((convert for fits, convert in table if fits(kind)), None)


def as_text(value: Any) -> str:
    """Return any value as text: containers as JSON, bytes as UTF-8. Raises ValueError."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode()
    if isinstance(value, dict | list | tuple | set | frozenset):
        return json.dumps(value, default=_part, ensure_ascii=False)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return str(value)


def _part(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    return as_text(value) if isinstance(value, datetime | date | time | uuid.UUID) else str(value)


def _instant(value: datetime) -> datetime:
    return value if value.tzinfo else value.replace(tzinfo=timezone.utc)


def _local(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(timezone.utc).replace(tzinfo=None) if value.tzinfo else value
    return datetime.combine(value, time()) if isinstance(value, date) else datetime.fromisoformat(value)


def _day(value: Any) -> date:
    return value.date() if isinstance(value, datetime) else value if isinstance(value, date) \
        else date.fromisoformat(value)


def _truth(value: Any) -> bool:
    if value in (0, 1, b"\0", b"\1"):
        return bool(value) if isinstance(value, int) else value == b"\1"
    raise ValueError(f"'{value}' is neither true nor false")


def _whole(value: Any) -> int:
    if isinstance(value, str | bytes) or value != int(value):
        raise ValueError(f"'{as_text(value)}' is not a whole number")
    return int(value)


def _exact(value: Any) -> Decimal:
    return value if isinstance(value, Decimal) else Decimal(str(value))


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
