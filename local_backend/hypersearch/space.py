"""The values of parameters: pure arithmetic, the same on all machines and versions of Python.

An axis is how samplers see a parameter: a choice, whole numbers, or real numbers. A range with a step is the whole
numbers of its points.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from local_backend.hypersearch.definition import Definition, Parameter, Value


class Axis(NamedTuple):
    """What a sampler draws for a parameter: a position in a choice, or a number from `low` to `high`, both included."""

    kind: Literal["choice", "whole", "real"]
    low: float | int
    high: float | int
    log: bool = False


def uniform(seed: int, *words: int | str) -> float:
    """Return a number from 0 to below 1: a function of the seed and the words."""
    digest = hashlib.blake2b("/".join(map(str, (seed, *words))).encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53


def seed_of(seed: int, *words: int | str) -> int:
    """Return a seed of 32 bits for another generator: a function of the seed and the words."""
    digest = hashlib.blake2b("/".join(map(str, (seed, *words))).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big")


@lru_cache(maxsize=4096)
def axis(one: Parameter) -> Axis:
    """Return the axis of a parameter."""
    if one.choices:
        return Axis("choice", 0, len(one.choices) - 1)
    if one.step is not None:
        return Axis("whole", 0, points(one) - 1)
    low, high = one.low, one.high
    if one.power is not None:
        low, high = sorted((one.power**one.low, one.power**one.high))
    if one.data == "DOUBLE":
        return Axis("real", low, high, one.log)
    first = math.ceil(low)
    last = max(first, math.floor(high))
    return Axis("whole", max(1, first), max(1, last), True) if one.log else Axis("whole", first, last)


def points(one: Parameter) -> float | int:
    """Return the number of values of a parameter; infinity for real numbers."""
    if one.step is not None and not one.choices:
        return int((_exact(one.high) - _exact(one.low)) / _exact(one.step)) + 1
    kind, low, high, _ = axis(one)
    return math.inf if kind == "real" and low < high else int(high - low) + 1


def _exact(number: float | int) -> Decimal:
    return Decimal(repr(number))


def at(one: Parameter, place: float | int) -> Value:
    """Return the value at a place of the axis."""
    if one.choices:
        return one.choices[int(place)]
    if one.step is not None:
        number = float(_exact(one.low) + int(place) * _exact(one.step))
        if one.power is not None:
            number = one.power**number
        return round(number) if one.data == "INT" else number
    return int(place) if one.data == "INT" else float(place)


def place(one: Parameter, value: Value) -> float | int | None:
    """Return the place of a value on the axis: the inverse of `at`. None for a value that the parameter cannot have."""
    if one.choices:
        return one.choices.index(value) if value in one.choices else None
    if isinstance(value, str):
        return None
    kind, low, high, _ = axis(one)
    if one.step is None:
        found: float | int = value if kind == "real" else round(value)
        return found if low <= found <= high and found == value else None
    if one.power is not None and value <= 0:
        return None
    exponent = value if one.power is None else math.log(value) / math.log(one.power)
    near = round((exponent - one.low) / one.step)
    # Rounding to whole numbers can make values equal: the lowest place counts.
    return next((k for k in range(max(0, near - 1), min(int(high), near + 1) + 1) if at(one, k) == value), None)


def draw(one: Parameter, part: float) -> Value:
    """Return the value for a uniform number from 0 to below 1."""
    kind, low, high, log = axis(one)
    if kind == "real":
        if log:
            return at(one, min(high, max(low, math.exp(math.log(low) + part * (math.log(high) - math.log(low))))))
        return at(one, min(high, low + part * (high - low)))
    if log:
        first, last = math.log(low - 0.5), math.log(high + 0.5)
        return at(one, min(high, max(low, round(math.exp(first + part * (last - first))))))
    return at(one, min(high, low + math.floor(part * (high - low + 1))))


@lru_cache(maxsize=64)
def in_order(parameters: tuple[Parameter, ...]) -> tuple[Parameter, ...]:
    """Return the parameters so that each comes after those that its conditions name."""
    found: dict[str, Parameter] = {}
    while len(found) < len(parameters):
        ready = [one for one in parameters
                 if one.name not in found and all(name in found for name, _ in one.when)]
        if not ready:
            raise ValueError("the conditions of the parameters form a cycle")
        found |= {one.name: one for one in ready}
    return tuple(found.values())


def applies(one: Parameter, values: Mapping[str, Value]) -> bool:
    """Return whether an experiment with these values has the parameter."""
    return all(name in values and values[name] in wanted for name, wanted in one.when)


def sample(parameters: tuple[Parameter, ...], seed: int, number: int) -> dict[str, Value]:
    """Return random values: a function of the seed and the number of the sample. The draw of a parameter does not
    depend on the other parameters."""
    found: dict[str, Value] = {}
    for one in in_order(parameters):
        if applies(one, found):
            found[one.name] = draw(one, uniform(seed, number, one.name))
    return _as_declared(parameters, found)


def _as_declared(parameters: Sequence[Parameter], values: Mapping[str, Value]) -> dict[str, Value]:
    return {one.name: values[one.name] for one in parameters if one.name in values}


def grid(parameters: tuple[Parameter, ...]) -> Iterator[dict[str, Value]]:
    """Yield all combinations. The last parameter changes first."""
    order = in_order(parameters)

    def below(index: int, found: dict[str, Value]) -> Iterator[dict[str, Value]]:
        if index == len(order):
            yield _as_declared(parameters, found)
            return
        one = order[index]
        if not applies(one, found):
            yield from below(index + 1, found)
            return
        _, low, high, _ = axis(one)
        for number in range(int(low), int(high) + 1 if high > low else int(low) + 1):
            yield from below(index + 1, found | {one.name: at(one, number if high > low else low)})

    return below(0, {})


def text(value: Value) -> str:
    """Return a value as `fixedVal` shows it: numbers in full precision."""
    return value if isinstance(value, str) else repr(value)


def config(definition: Definition, values: Mapping[str, Value], resource: int | None) -> dict[str, Value]:
    """Return the content of config.json for an experiment: numbers as numbers, the resource included."""
    found = dict(values)
    if definition.resource is not None and resource is not None:
        found[definition.resource] = resource
    return found


def listing(definition: Definition, values: Mapping[str, Value], resource: int | None,
            number: int | None = None) -> list[dict[str, Any]]:
    """Return the `hyperParams` of an experiment as answers show them. `number` is the id of the experiment."""
    for one in definition.given:
        if one.id == number:
            return one.given
    types = {one.name: one.data.lower() for one in definition.parameters}
    types |= {one["name"].strip(): one["dataType"].strip() for one in definition.raw.get("hyperParams", [])}
    found = [_shown(name, types.get(name, "str"), text(value)) for name, value in values.items()]
    if definition.resource is not None and resource is not None:
        found.append(_shown(definition.resource, "str", str(resource)))
    return found


def _shown(name: str, data: str, value: str) -> dict[str, Any]:
    return {"name": name, "dataType": data, "userDefined": False, "fixedVal": value}
