"""The definition of a search from short texts, such as `lr=log:1e-4..1e-1` and `accuracy:maximize`: pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dlicmd.contract.metric_names import is_lower_better
from dlicmd.sdk import hints
from dlicmd.sdk.errors import UsageProblem

MINIMIZE, MAXIMIZE = "minimize", "maximize"
INT, DOUBLE, STR = "INT", "DOUBLE", "STR"
GRID = "Grid"
#: Algorithms that need a resource.
_WITH_RESOURCE = ("asha", "hyperband")
#: Experiments and simultaneous experiments of a search, unless the user says otherwise.
TRIALS, PARALLEL = 20, 4
_DIRECTIONS = {"min": MINIMIZE, MINIMIZE: MINIMIZE, "max": MAXIMIZE, MAXIMIZE: MAXIMIZE}
_LOG = "log:"
_RANGE = re.compile(r"(?P<low>[^,]+?)\.\.(?P<high>[^,/]+)(?:/(?P<step>[^,]+))?")
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,3})?")
#: A text that was probably meant as a range.
_NEARLY_RANGE = re.compile(rf"{_NUMBER.pattern}\s*[-:]\s*{_NUMBER.pattern}")
_FORMS = "LOW..HIGH, LOW..HIGH/STEP, log:LOW..HIGH or A,B,C"
#: Data type → the keys of its least value, its largest value and its list.
_KEYS = {INT: ("minIntVal", "maxIntVal", "discreteIntVal"), DOUBLE: ("minDbVal", "maxDbVal", "discreteDbVal"),
         STR: ("", "", "discreateStrVal")}

Value = int | float | str


class Short(NamedTuple):
    """A search as a user describes it in few words. None selects the default."""

    params: Mapping[str, Any]
    metrics: Sequence[str]
    trials: int | None = None
    parallel: int | None = None
    minutes: int | None = None
    algorithm: str | None = None
    resource: str | None = None
    resume: bool = False
    seed: int | None = None
    name: str | None = None


def definition(short: Short, args: str) -> dict[str, Any]:
    """Return the definition of a search for a server. `args` is the command line of the experiments. Raises
    UsageProblem."""
    if not short.params:
        raise UsageProblem(hints.either("give the parameters of the search, such as --hpo-param lr=log:1e-4..1e-1",
                                        "params needs a parameter, such as {'lr': 'log:1e-4..1e-1'}"))
    algorithm = short.algorithm or ("Tpe" if short.resource is None else "ASHA")
    trials = short.trials or (-1 if algorithm.lower() == GRID.lower() else TRIALS)
    found: dict[str, Any] = {
        "algorithm": algorithm, "maxRunTime": short.minutes or -1, "maxJobNum": trials,
        "maxParalleJobNum": short.parallel or (PARALLEL if trials < 0 else min(PARALLEL, trials)),
        **_objective(short.metrics),
    }
    if short.resource is None and algorithm.lower() in _WITH_RESOURCE:
        raise UsageProblem(hints.either(f"{algorithm} needs --hpo-resource, such as --hpo-resource epochs:27",
                                        f"{algorithm} needs a resource, such as 'epochs:27'"))
    params = [] if short.resource is None else resource(short.resource)
    if short.seed is not None:
        params.append({"name": "RandomSeed", "value": str(short.seed)})
    if params:
        found["algoParams"] = params
    if short.resume:
        if short.resource is None:
            raise UsageProblem(hints.either("--hpo-resume needs --hpo-resource, such as epochs:27",
                                            "resume needs a resource, such as 'epochs:27'"))
        found["resume"] = True
    head = {} if short.name is None else {"hpoName": short.name}
    return {**head, "modelSpec": {"args": args}, "algoDef": found,
            "hyperParams": [parameter(name, values) for name, values in short.params.items()]}


def _objective(metrics: Sequence[str]) -> dict[str, Any]:
    if not metrics:
        raise UsageProblem(hints.either("give the metric of the search, such as --hpo-metric accuracy:maximize",
                                        "metric needs a name, such as 'accuracy:maximize'"))
    (first, down), *others = [metric(text) for text in metrics]
    found: dict[str, Any] = {"objectiveMetric": first, "objective": down}
    if others:
        found["objectives"] = {first: down, **dict(others)}
    return found


def metric(text: str) -> tuple[str, str]:
    """Return the metric and the direction in `METRIC[:minimize|maximize]`. Raises UsageProblem."""
    name, colon, way = text.rpartition(":")
    if not colon:
        name, way = text, MINIMIZE if is_lower_better(text) else MAXIMIZE
    if not name.strip() or way.lower() not in _DIRECTIONS:
        raise UsageProblem(f"'{text}' is not a metric with a direction, such as accuracy:{MAXIMIZE} or loss:{MINIMIZE}")
    return name.strip(), _DIRECTIONS[way.lower()]


def resource(text: str) -> list[dict[str, str]]:
    """Return `NAME:MOST` as parameters of an algorithm. Raises UsageProblem."""
    name, _, most = text.rpartition(":")
    if not name.strip() or not _WHOLE.fullmatch(most) or int(most) < 1:
        raise UsageProblem(f"'{text}' is not a resource with its largest value, such as epochs:27")
    return [{"name": "ResourceName", "value": name.strip()}, {"name": "ResourceValue", "value": str(int(most))}]


def pairs(texts: Iterable[str]) -> dict[str, str]:
    """Return `NAME=VALUES` texts as a mapping. Raises UsageProblem."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.strip()
        if not equals or not name:
            raise UsageProblem(f"'{text}' is not NAME=VALUES; VALUES are {_FORMS}")
        if name in found:
            raise UsageProblem(f"the parameter '{name}' is given twice")
        found[name] = values
    return found


def parameter(name: str, values: Any) -> dict[str, Any]:
    """Return one parameter of the space.

    Args:
        name: Name of the parameter.
        values: A text, such as `1..10` or `a,b`; a list of values; or an object of the contract without its name.

    Raises:
        UsageProblem: The values are wrong.
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


def _wrong(name: str, text: str, why: str) -> UsageProblem:
    return UsageProblem(f"parameter {name}: '{text}': {why}; values are {_FORMS}")
