"""The algoParams of the built-in algorithms: names, limits and defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from local_backend.errors import Invalid
from local_backend.fields import NAME, Fields, number_of, shown
from local_backend.hypersearch.definition import BUILT_IN, WITH_RUNGS


class AlgorithmParam(NamedTuple):
    """One algoParam: a number with its limits, the lower one exclusive, a switch, or a text."""

    kind: type
    above: float = 0
    most: float = 2**53


_INT, _FLOAT, _SWITCH, _TEXT = int, float, bool, str
#: Largest number in a column of the database.
_LARGEST = 2**31 - 1
_SEED = {"RandomSeed": AlgorithmParam(_INT, -(2**63), 2**64)}
_RUNGS = _SEED | {"eta": AlgorithmParam(_FLOAT, 1), "ResourceName": AlgorithmParam(_TEXT),
                  "ResourceValue": AlgorithmParam(_INT, 0, _LARGEST),
                  "MinResource": AlgorithmParam(_INT, 0, _LARGEST)}
#: Most rungs of a bracket.
MOST_RUNGS = 100
#: Algorithm → name → what the value must be.
PARAMS: Mapping[str, Mapping[str, AlgorithmParam]] = {
    "Random": _SEED,
    "TPE": _SEED | {"WarmUp": AlgorithmParam(_INT, 2), "EICandidate": AlgorithmParam(_INT, 1, 1000),
                    "GoodRatio": AlgorithmParam(_FLOAT), "GoodMax": AlgorithmParam(_INT, 1)},
    "Bayesian": _SEED | {"InitPoints": AlgorithmParam(_INT), "CubeSize": AlgorithmParam(_INT),
                         "Noiseless": AlgorithmParam(_SWITCH)},
    "Hyperband": _RUNGS,
    "ExperimentGridSearch": {},
    "ASHA": _RUNGS,
    "Grid": {},
    "CMAES": _SEED,
    "NSGA2": _SEED | {"PopulationSize": AlgorithmParam(_INT, 1, 10_000)},
}


def checked(given: Mapping[str, str], algorithm: str, algo: Fields) -> dict[str, Any]:
    """Return the fields of the definition that come from algoParams. Raises Invalid."""
    if algorithm not in BUILT_IN:
        return {"params": dict(given), "seed": _seed(given.get("RandomSeed"))}
    known = {name.lower(): name for name in PARAMS[algorithm]}
    params: dict[str, str] = {}
    for said, value in given.items():
        name = known.get(said.lower())
        if name is None:
            raise Invalid("search.algorithm", f"algoParams: {algorithm} has no parameter {shown(said)}; it has "
                                              f"{', '.join(PARAMS[algorithm]) or 'none'}")
        if value == "" and name == "RandomSeed":
            continue
        _check(name, value, PARAMS[algorithm][name])
        params[name] = value
    found: dict[str, Any] = {"params": params, "seed": _seed(params.get("RandomSeed"))}
    if algorithm in WITH_RUNGS:
        found |= _rungs(params, algorithm, algo)
    return found


def _seed(text: str | None) -> int | None:
    number = number_of(text)
    return None if number is None else int(number)


def _check(name: str, value: str, param: AlgorithmParam) -> None:
    if param.kind is _SWITCH:
        good, wanted = value.strip().lower() in ("true", "false"), "true or false"
    elif param.kind is _TEXT:
        good, wanted = bool(value.strip()), "a text that is not empty"
    else:
        number = number_of(value)
        good = number is not None and param.above < number <= param.most and (
            param.kind is _FLOAT or int(number) == number)
        kind = "a number" if param.kind is _FLOAT else "a whole number"
        wanted = kind if name == "RandomSeed" else f"{kind} above {param.above}, at most {param.most}"
    if not good:
        raise Invalid("search.algorithm", f"algoParams: {name} must be {wanted}, but it is {shown(value)}")


def _rungs(params: Mapping[str, str], algorithm: str, algo: Fields) -> dict[str, Any]:
    for name in ("ResourceName", "ResourceValue"):
        if name not in params:
            raise Invalid("search.algorithm", f"algoParams: {algorithm} needs {name}")
    old = algo.number("hyperbandEta") or 3.0
    if old <= 1:
        raise Invalid("search.algorithm", f"algoDef: hyperbandEta must be above 1, but it is {old}")
    most, least = int(float(params["ResourceValue"])), int(float(params.get("MinResource", "1")))
    if least > most:
        raise Invalid("search.algorithm", f"algoParams: MinResource {least} is above ResourceValue {most}")
    eta = float(params.get("eta", old))
    if math.log(most / least) > MOST_RUNGS * math.log(eta):
        raise Invalid("search.algorithm", f"algoParams: eta {eta} makes more than {MOST_RUNGS} rungs from {least} to "
                                          f"{most}; use a larger one")
    return {"resource": _resource(params["ResourceName"]), "most_resource": most, "least_resource": least, "eta": eta}


def _resource(said: str) -> str:
    name = said.strip()
    if len(name) > NAME or not name.isprintable():
        raise Invalid("search.algorithm", f"algoParams: ResourceName must have at most {NAME} printable characters, "
                                          f"but it is {shown(name)}")
    return name
