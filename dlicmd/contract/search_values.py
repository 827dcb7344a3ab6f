"""The values of a hyper-parameter and of a resource in short texts, such as `log:1e-4..1e-1` and `epochs:27`: the same
for the command line, Python and pages. Wrong texts raise ValueError with a sentence. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

INT, DOUBLE, STR = "INT", "DOUBLE", "STR"
MINIMIZE, MAXIMIZE = "minimize", "maximize"
GRID = "Grid"
#: Algorithms that need a resource, in small letters.
WITH_RESOURCE = ("asha", "hyperband")
#: Experiments and simultaneous experiments of a search, unless the user says otherwise.
TRIALS, PARALLEL = 20, 4
_LOG = "log:"
_RANGE = re.compile(r"(?P<low>[^,]+?)\.\.(?P<high>[^,/]+)(?:/(?P<step>[^,]+))?")
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,3})?")
#: A text that was probably meant as a range.
_NEARLY_RANGE = re.compile(rf"{_NUMBER.pattern}\s*[-:]\s*{_NUMBER.pattern}")
FORMS = "LOW..HIGH, LOW..HIGH/STEP, log:LOW..HIGH or A,B,C"
#: Data type → the keys of its least value, its largest value and its list.
_KEYS = {INT: ("minIntVal", "maxIntVal", "discreteIntVal"), DOUBLE: ("minDbVal", "maxDbVal", "discreteDbVal"),
         STR: ("", "", "discreateStrVal")}


Value = int | float | str


def parameter(name: str, values: Any) -> dict[str, Any]:
    """Return one parameter of the space.

    Args:
        name: Name of the parameter.
        values: A text, such as `1..10` or `a,b`; a list of values; or an object of the contract without its name.

    Raises:
        ValueError: The values are wrong.
    """
    if isinstance(values, Mapping):
        return {"name": name, **values}
    if isinstance(values, str):
        return {"name": name, **(_range(name, values) or _choice(name, [_value(one) for one in _split(name, values)]))}
    if isinstance(values, list | tuple):
        return {"name": name, **_choice(name, [_plain(name, one) for one in values])}
    return {"name": name, **_choice(name, [_plain(name, values)])}


def _range(name: str, text: str) -> dict[str, Any] | None:
    """Return a range, or None if the text is none."""
    is_log, plain = text.startswith(_LOG), text.removeprefix(_LOG)
    match = _RANGE.fullmatch(plain)
    if match is None:
        if is_log:
            raise _wrong(name, text, "log: needs LOW..HIGH")
        if _NEARLY_RANGE.fullmatch(plain) and not _NUMBER.fullmatch(plain):
            raise _wrong(name, text, "a range is written LOW..HIGH")
        return None
    parts = {key: one for key, one in match.groupdict().items() if one is not None}
    if not all(_NUMBER.fullmatch(one) for one in parts.values()):
        raise _wrong(name, text, "LOW, HIGH and STEP must be numbers")
    kind = INT if all(_WHOLE.fullmatch(one) for one in parts.values()) else DOUBLE
    low, high, *step = ((int if kind == INT else float)(one) for one in parts.values())
    if not low < high:
        raise _wrong(name, text, "LOW must be below HIGH")
    if is_log and (low <= 0 or step):
        raise _wrong(name, text, "log: needs LOW above 0, and no STEP")
    if step and not 0 < step[0] <= high - low:
        raise _wrong(name, text, "STEP must be above 0, and not above HIGH - LOW")
    least, most, _ = _KEYS[kind]
    found: dict[str, Any] = {"type": "Range", "dataType": kind, least: low, most: high}
    return {**found, **({"step": step[0]} if step else {}), **({"log": True} if is_log else {})}


def _split(name: str, text: str) -> list[str]:
    found = [one.strip() for one in text.split(",")]
    if not all(found):
        raise _wrong(name, text, "a value is empty")
    return found


def _value(text: str) -> Value:
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text


def _plain(name: str, value: object) -> Value:
    if isinstance(value, int | float | str) and not isinstance(value, bool) and value not in (
            float("inf"), float("-inf")) and value == value:  # noqa: PLR0124 - not a number
        return value
    if isinstance(value, bool):
        return str(value)
    raise _wrong(name, str(value), "values must be numbers or texts")


def _choice(name: str, values: Sequence[Value]) -> dict[str, Any]:
    """Return a list of values. Values of different types become numbers with fractions, or texts."""
    if not values:
        raise _wrong(name, "", "there is no value")
    if all(isinstance(one, int) for one in values):
        kind, listed = INT, list(values)
    elif all(isinstance(one, int | float) for one in values):
        kind, listed = DOUBLE, [float(one) for one in values]
    else:
        kind, listed = STR, [str(one) for one in values]
    if len(set(listed)) < len(listed):
        raise _wrong(name, ",".join(map(str, values)), "a value occurs twice")
    return {"type": "Discrete", "dataType": kind, _KEYS[kind][2]: listed}


def _wrong(name: str, text: str, why: str) -> ValueError:
    return ValueError(f"parameter {name}: '{text}': {why}; values are {FORMS}")


def resource(text: str) -> list[dict[str, str]]:
    """Return `NAME:MOST` as parameters of an algorithm. Raises ValueError."""
    name, _, most = text.rpartition(":")
    if not name.strip() or not _WHOLE.fullmatch(most) or int(most) < 1:
        raise ValueError(f"'{text}' is not a resource with its largest value, such as epochs:27")
    return [{"name": "ResourceName", "value": name.strip()}, {"name": "ResourceValue", "value": str(int(most))}]
