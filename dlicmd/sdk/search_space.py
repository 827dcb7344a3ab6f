"""The definition of a search from short texts, such as `lr=log:1e-4..1e-1` and `accuracy:maximize`: pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from dlicmd.contract import search_values
from dlicmd.contract.metric_names import is_lower_better
from dlicmd.contract.search_values import GRID, MAXIMIZE, MINIMIZE, PARALLEL, TRIALS, WITH_RESOURCE
from dlicmd.sdk import hints
from dlicmd.sdk.errors import UsageProblem

_DIRECTIONS = {"min": MINIMIZE, MINIMIZE: MINIMIZE, "max": MAXIMIZE, MAXIMIZE: MAXIMIZE}

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
    if short.resource is None and algorithm.lower() in WITH_RESOURCE:
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
    with _usage():
        return search_values.resource(text)


def pairs(texts: Iterable[str]) -> dict[str, str]:
    """Return `NAME=VALUES` texts as a mapping. Raises UsageProblem."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.strip()
        if not equals or not name:
            raise UsageProblem(f"'{text}' is not NAME=VALUES; VALUES are {search_values.FORMS}")
        if name in found:
            raise UsageProblem(f"the parameter '{name}' is given twice")
        found[name] = values
    return found


def parameter(name: str, values: Any) -> dict[str, Any]:
    """Return one parameter of the space; see `search_values.parameter`. Raises UsageProblem."""
    with _usage():
        return search_values.parameter(name, values)


@contextmanager
def _usage() -> Iterator[None]:
    try:
        yield
    except ValueError as problem:
        raise UsageProblem(str(problem)) from None
