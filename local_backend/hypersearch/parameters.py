"""Reads the space of a search: `hyperParams` and `experiments` of a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from local_backend.errors import Invalid
from local_backend.fields import NAME, TEXT, Fields, number_of, shown
from local_backend.hypersearch import refusals
from local_backend.hypersearch.definition import DataType, Listed, Parameter, Value
from local_backend.hypersearch.space import points, text

#: Most parameters, values of a choice, experiments in a list, points of a range with a step, and conditions of a
#: parameter.
PARAMETERS, CHOICES, EXPERIMENTS, POINTS, CONDITIONS = 500, 10_000, 10_000, 10**9, 50
#: Base and exponents of `power` must give values within the range of floating-point numbers.
_HUGE = 1e300
_TYPES: Mapping[str, DataType] = {
    "int": "INT", "integer": "INT", "double": "DOUBLE", "float": "DOUBLE", "str": "STR", "string": "STR",
}
_LISTS = {"INT": ("discreteIntVal",), "DOUBLE": ("discreteDbVal",), "STR": ("discreateStrVal", "discreteStrVal")}
_BOUNDS = {"INT": ("minIntVal", "maxIntVal"), "DOUBLE": ("minDbVal", "maxDbVal")}
_NAMES = ("name", "type", "dataType", "minDbVal", "maxDbVal", "minIntVal", "maxIntVal", "discreteDbVal",
          "discreteIntVal", "discreateStrVal", "discreteStrVal", "step", "power", "fixedVal", "userDefined", "log",
          "if")


def of_items(items: Sequence[Any]) -> tuple[Parameter, ...]:
    """Return the parameters of `hyperParams`. Raises Invalid."""
    found = tuple(_parameter(item, number) for number, item in enumerate(items))
    by_name: dict[str, Parameter] = {}
    for one in found:
        if one.name in by_name:
            raise Invalid("search.space", f"hyperParams: the name {shown(one.name)} occurs more than once")
        by_name[one.name] = one
    for one in found:
        _check_conditions(one, by_name)
    return found


def _parameter(item: Any, number: int) -> Parameter:
    one = Fields(item, f"hyperParams[{number}]", refusals.space)
    name = one.name("name")
    one = Fields(item, f"hyperParams: {name}", refusals.space)
    one.check_names(_NAMES)
    kind = one.word("type", ("Range", "Discrete", "fix"))
    data = _data(one)
    when = _conditions(one)
    if kind == "Range":
        return Parameter(name, data, **_range(one, data), when=when)
    if one.switch("log"):
        raise one.refuse("log", "needs the type Range")
    if kind == "fix":
        return Parameter(name, data, choices=(_fixed(one, data),), when=when)
    values = one.list(*_LISTS[data], most=CHOICES)
    choices = tuple(dict.fromkeys(_value(one, value, data, _LISTS[data][0]) for value in values))
    if not choices:
        raise one.refuse(_LISTS[data][0], f"must have at least 1 value, because the type is Discrete and the dataType "
                                          f"{data}")
    return Parameter(name, data, choices=choices, when=when)


def _data(one: Fields) -> DataType:
    said = one.required("dataType", most=NAME).strip().lower()
    if said not in _TYPES:
        raise one.refuse("dataType", f"must be INT, DOUBLE or STR, but it is {shown(said)}")
    return _TYPES[said]


def _range(one: Fields, data: DataType) -> dict[str, Any]:
    if data == "STR":
        raise one.refuse("dataType", "must be INT or DOUBLE, because the type is Range")
    read = one.whole if data == "INT" else one.number
    low, high = (read(key) for key in _BOUNDS[data])
    if low is None or high is None or low > high:
        raise one.refuse(" and ".join(_BOUNDS[data]), f"must be numbers, the first not above the second, but they are "
                                                      f"{low} and {high}")
    step, power, log = one.number("step"), one.number("power"), one.switch("log")
    step, power = step or None, power or None  # clients send 0 for a member that they do not use
    if step is not None and step < 0:
        raise one.refuse("step", f"must be above 0, but it is {step}")
    if data == "INT" and power is None and step is not None and int(step) != step:
        raise one.refuse("step", f"must be a whole number, because the dataType is INT, but it is {step}")
    if power is not None:
        _check_power(one, power, low, high)
    if log and step is not None and not (data == "INT" and step == 1 and power is None):
        raise one.refuse("log", "and step exclude each other")
    if log and power is None and low <= 0:
        raise one.refuse("log", f"needs a range above 0, but it begins at {low}")
    if data == "INT" and step is not None and int(step) == step:
        step = int(step)
    if data == "INT" and power is None and step == 1:
        step = None
    if data == "DOUBLE":
        low, high = float(low), float(high)
    found: dict[str, Any] = {"low": low, "high": high, "step": step, "log": log,
                             "power": None if power is None else float(power)}
    if step is not None and points(Parameter("", data, **found)) > POINTS:
        raise one.refuse("step", f"makes more than {POINTS} values; use a larger one")
    return found


def _check_power(one: Fields, power: float, low: float, high: float) -> None:
    if power <= 0 or power == 1:
        raise one.refuse("power", f"must be above 0 and not 1, but it is {power}")
    try:
        ends = float(power) ** low, float(power) ** high
    except OverflowError:
        ends = 0.0, 0.0
    if not all(1 / _HUGE < end < _HUGE for end in ends):
        raise one.refuse("power", f"{power} with exponents from {low} to {high} exceeds the numbers of this machine")


def _value(one: Fields, value: Any, data: DataType, key: str) -> Value:
    if data == "STR":
        if isinstance(value, bool) or not isinstance(value, str | int | float) or len(str(value)) > TEXT:
            raise one.refuse(key, f"must have texts, but one is {shown(value)}")
        if "\0" in str(value):
            raise one.refuse(key, "must not contain the character NUL")
        return str(value)
    number = number_of(value)
    if number is None or (data == "INT" and int(number) != number):
        raise one.refuse(key, f"must have {'whole ' if data == 'INT' else ''}numbers, but one is {shown(value)}")
    return int(number) if data == "INT" else float(number)


def _fixed(one: Fields, data: DataType) -> Value:
    value = one.get("fixedVal")
    if value is None:
        raise one.refuse("fixedVal", "is required")
    return _value(one, value, data, "fixedVal")


def _conditions(one: Fields) -> tuple[tuple[str, tuple[Value, ...]], ...]:
    """Return the conditions of `"if": {"other": value or list of values}`."""
    found = []
    given = one.object("if")
    if len(given) > CONDITIONS:
        raise one.refuse("if", f"names {len(given)} parameters; the limit is {CONDITIONS}")
    for name, wanted in given.items():
        values = wanted if isinstance(wanted, list) else [wanted]
        if not values or not all(isinstance(value, str | int | float) for value in values):
            raise one.refuse("if", f"must name values of {shown(name)}, but it has {shown(wanted)}")
        found.append((name, tuple(values)))
    return tuple(found)


def _check_conditions(one: Parameter, by_name: Mapping[str, Parameter]) -> None:
    """Refuse unknown names, values that the other parameter cannot have, and circles."""
    for name, values in one.when:
        other = by_name.get(name)
        if other is None or not other.choices:
            raise Invalid("search.space", f"hyperParams: {one.name}: if names {shown(name)}, which must be another "
                                          "parameter of the type Discrete")
        known = set(other.choices)
        for value in values:
            if value not in known:
                raise Invalid("search.space", f"hyperParams: {one.name}: if names the value {shown(value)}, which "
                                              f"{shown(name)} cannot have")
    seen: set[str] = set()
    rest = [name for name, _ in one.when]
    while rest:
        name = rest.pop()
        if name == one.name:
            raise Invalid("search.space", f"hyperParams: {one.name}: if depends on {shown(name)} itself")
        if name not in seen and name in by_name:
            seen.add(name)
            rest += [above for above, _ in by_name[name].when]


def check_grid(found: Sequence[Parameter]) -> None:
    """Refuse ranges of which a grid has no end. Raises Invalid."""
    for one in found:
        if not one.choices and points(one) > CHOICES:
            raise Invalid("search.space", f"hyperParams: {one.name}: the algorithm Grid needs a step that makes at "
                                          f"most {CHOICES} values")


def listed(items: Sequence[Any]) -> tuple[Listed, ...]:
    """Return the `experiments` of an ExperimentGridSearch. Raises Invalid."""
    found: list[Listed] = []
    ids: set[int] = set()
    for number, item in enumerate(items):
        one = Fields(item, f"experiments[{number}]", refusals.space)
        identity = one.whole("id")
        if identity is None or not 0 <= identity < 2**31 or identity in ids:
            raise one.refuse("id", f"must be a whole number from 0 to {2**31 - 1} that no other experiment has, but it "
                                   f"is {shown(identity)}")
        ids.add(identity)
        values: dict[str, Value] = {}
        shown_as: list[dict[str, Any]] = []
        for pair in one.list("fixedHyperParams", "hyperParams", most=PARAMETERS):
            given = Fields(pair, f"experiments[{number}].hyperParams", refusals.space)
            name = given.name("name")
            given = Fields(pair, f"experiments[{number}]: {name}", refusals.space)
            if name in values:
                raise given.refuse("name", "occurs more than once")
            values[name] = _fixed(given, _data(given))
            shown_as.append({"name": name, "type": "fix", "dataType": str(given.get("dataType")).strip().lower(),
                             "userDefined": bool(given.get("userDefined")), "fixedVal": text(values[name])})
        found.append(Listed(identity, values, shown_as))
    return tuple(found)
