"""Replacements for missing values. A value that would lose a part in the type of the column is refused."""

from __future__ import annotations

import datetime
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from fabric_data.errors import DataProblem

if TYPE_CHECKING:
    import pyarrow


def stand_in(value: Any, kind: Any, float_type: np.dtype[Any] | None) -> pyarrow.Scalar:
    """Return `value` as a scalar of this Arrow type. With `float_type`, floating-point numbers must fit that type,
    too. Raises DataProblem if the value does not fit, or part of it would be lost. Rounding of floating-point
    numbers is not a loss."""
    import pyarrow as pa

    try:
        found = pa.scalar(value, kind)
    except (pa.ArrowException, ArithmeticError, TypeError, ValueError) as problem:
        raise DataProblem(f"fill: {value!r} does not fit {kind}: {problem}") from None
    if not _is_whole(value, found):
        raise DataProblem(f"fill: {value!r} does not fit {kind}: part of the value would be lost")
    if float_type is not None and not _is_within(found, float_type):
        raise DataProblem(f"fill: {value!r} does not fit {float_type}, the requested dtype")
    return found


def _is_whole(given: Any, held: pyarrow.Scalar) -> bool:
    """Return whether Arrow kept the whole given value. Arrow itself refuses many values that do not fit."""
    import pyarrow.types as t

    if not held.is_valid:
        return True
    if _is_list(held.type):
        return all(map(_is_whole, given, held))
    if t.is_temporal(held.type):
        return _is_same_time(given, held)
    if t.is_floating(held.type):
        return _is_near(float(given), held.as_py())
    return not t.is_integer(held.type) or bool(held.as_py() == given)


def _is_same_time(given: Any, held: pyarrow.Scalar) -> bool:
    if isinstance(given, np.datetime64 | np.timedelta64):
        return True  # the unit is the same: Arrow refuses others
    if not isinstance(given, datetime.date | datetime.time | datetime.timedelta):
        return bool(held.value == given)
    found = held.as_py()
    if isinstance(given, datetime.datetime):
        if not isinstance(found, datetime.datetime):
            return given == datetime.datetime.combine(found, datetime.time())
        return _utc(given) == _utc(found)
    return bool(given == found)


def _utc(moment: datetime.datetime) -> datetime.datetime:
    """Return the time as Arrow stores it: in UTC and without a zone. A time without a zone counts as UTC."""
    return moment if moment.tzinfo is None else moment.astimezone(datetime.timezone.utc).replace(tzinfo=None)


def _is_within(held: pyarrow.Scalar, float_type: np.dtype[Any]) -> bool:
    """Return whether floating-point numbers and decimals are in the range of a type."""
    import pyarrow.types as t

    if not held.is_valid:
        return True
    if _is_list(held.type):
        return all(_is_within(one, float_type) for one in held)
    if not (t.is_floating(held.type) or t.is_decimal(held.type)):
        return True
    number = float(held.as_py())
    with np.errstate(over="ignore", under="ignore"):
        return _is_near(number, float(np.float64(number).astype(float_type)))


def _is_near(given: float, held: float) -> bool:
    """Return whether a rounded number is still of its kind: it became neither infinite nor zero."""
    return (math.isnan(given), math.isinf(given), given == 0) == (math.isnan(held), math.isinf(held), held == 0)


def _is_list(kind: Any) -> bool:
    import pyarrow.types as t

    return bool(t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind))
