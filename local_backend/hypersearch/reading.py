"""Reads the definition of a search: `data` of a request, with all spellings of WMLA's clients."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from local_backend.errors import Invalid
from local_backend.fields import NAME, TEXT, Fields, number_of, shown
from local_backend.hypersearch import parameters, refusals
from local_backend.hypersearch.algorithm_params import checked
from local_backend.hypersearch.definition import (
    ASKING,
    BUILT_IN,
    WITH_RUNGS,
    Constraint,
    Definition,
    Mode,
)
from local_backend.hypersearch.literal import value_of

_DIRECTIONS = ("minimize", "maximize")
#: Most experiments at the same time, metrics of one kind, and minutes of a search (100 years).
PARALLEL, METRICS, MINUTES = 10_000, 100, 52_560_000
#: Members of algoDef: those of WMLA, then those of this product.
_PARALLEL_NAMES = ("maxParalleJobNum", "maxParallelJobNum", "maxParalleJob", "maxParallelJob")
_ALGO_DEF = ("algorithm", "maxRunTime", "maxJobNum", *_PARALLEL_NAMES, "objectiveMetric", "objective",
             "additionalMetrics", "algoParams", "hyperbandEta")
_BEYOND = ("refill", "resume", "constraints", "objectives", "warmStart", "maxFailedJobNum", "terminator")
_TOP = ("hpoName", "modelSpec", "algoDef", "hyperParams", "experiments")
#: Algorithms that can handle several objectives.
_SEVERAL = ("Random", "TPE", "Bayesian", "ExperimentGridSearch", "Grid", "NSGA2")


def parse(text: str, plugins: Collection[str] = (), args: str | None = None) -> Definition:
    """Return the definition of a text: JSON or a Python literal.

    `plugins` are the names of the installed algorithms. `args` stands for modelSpec.args in requests that have none.
    Raises Invalid with the code search.definition, search.algorithm or search.space.
    """
    value = value_of(text, "the definition of the search", refusals.definition)
    top = Fields(value, "the definition of the search", refusals.definition)
    top.check_names(_TOP, dict.fromkeys((*_ALGO_DEF, *_BEYOND), "algoDef"))
    algo = Fields(top.get("algoDef"), "algoDef", refusals.definition)
    algo.check_names((*_ALGO_DEF, *_BEYOND), {"args": "modelSpec", "hyperParams": "the top level of the definition"})
    algorithm = _algorithm(algo, plugins)
    space = _space(top, algorithm)
    sig_name = None
    if args is None:
        model = Fields(top.get("modelSpec"), "modelSpec", refusals.definition)
        args, sig_name = model.required("args"), model.text("sigName", most=NAME)
    objectives = _objectives(algo, algorithm)
    params = checked(_params(algo), algorithm, algo)
    found: dict[str, Any] = dict(
        name=top.text("hpoName", most=NAME) or None, args=args, sig_name=sig_name, algorithm=algorithm,
        metric=objectives[0][0], maximize=objectives[0][1], additional=_additional(algo), objectives=objectives,
        constraints=_constraints(algo), warm_start=algo.text("warmStart", most=NAME) or None,
        terminator=algo.switch("terminator"), raw=_echo(value), **_limits(algo), **_continuing(algo, algorithm),
        **space, **params,
    )
    return _consistent(Definition(**found), algo)


def _algorithm(algo: Fields, plugins: Collection[str]) -> str:
    said = algo.required("algorithm", most=NAME).strip()
    for known in (*BUILT_IN, *plugins):
        if known.lower() == said.lower():
            return known
    raise Invalid("search.algorithm", f"algoDef: algorithm must be one of {', '.join((*BUILT_IN, *sorted(plugins)))}, "
                                      f"but it is {shown(said)}")


def _limits(algo: Fields) -> dict[str, Any]:
    minutes = algo.number("maxRunTime")
    if minutes is not None and minutes != -1 and not 0 <= minutes <= MINUTES:
        raise algo.refuse("maxRunTime", f"must be -1 (no limit) or minutes up to {MINUTES}, but it is {minutes}")
    parallel = algo.whole(*_PARALLEL_NAMES)
    if parallel is not None and not 1 <= parallel <= PARALLEL:
        raise algo.refuse("maxParalleJobNum", f"must be from 1 to {PARALLEL}, but it is {parallel}")
    failed = algo.whole("maxFailedJobNum")
    if failed is not None and failed < -1:
        raise algo.refuse("maxFailedJobNum", f"must be -1 (no limit) or more, but it is {failed}")
    return {"max_minutes": minutes if minutes and minutes > 0 else None, "max_experiments": algo.limit("maxJobNum"),
            "parallel": parallel or 1, "max_failed": failed if failed is not None and failed >= 0 else None}


def _continuing(algo: Fields, algorithm: str) -> dict[str, Any]:
    refill, resume = algo.word("refill", ("batch", "async"), "batch"), algo.switch("resume")
    if resume and algorithm not in WITH_RUNGS:
        raise algo.refuse("resume", f"needs the algorithm {' or '.join(WITH_RUNGS)}, but it is {algorithm}")
    return {"refill": "async" if algorithm == "ASHA" else refill, "resume": resume}


def _objectives(algo: Fields, algorithm: str) -> tuple[tuple[str, bool], ...]:
    """Return the objectives: objectiveMetric, then others of `objectives`, {"metric": "minimize"}."""
    several = algo.names("objectives", METRICS)
    found: dict[str, bool] = {}
    if not several or algo.get("objectiveMetric") is not None:
        metric = algo.name("objectiveMetric")
        found[metric] = algo.word("objective", _DIRECTIONS, several.get(metric)) == "maximize"
    directions = Fields(several, "algoDef.objectives", refusals.definition)
    for metric in several:
        largest = directions.word(metric, _DIRECTIONS) == "maximize"
        if found.setdefault(metric, largest) != largest:
            raise algo.refuse("objectives", f"and objective disagree about {shown(metric)}")
    if len(found) > 1 and algorithm in BUILT_IN and algorithm not in _SEVERAL:
        raise Invalid("search.algorithm", f"algoDef: {algorithm} handles 1 objective, but the definition has "
                                          f"{len(found)}; use {', '.join(_SEVERAL)}")
    return tuple(found.items())


def _additional(algo: Fields) -> dict[str, Mode]:
    found = algo.names("additionalMetrics", METRICS)
    modes: Mapping[str, Mode] = {"minimize": "minimize", "maximize": "maximize"}
    return {metric: modes.get(str(mode).strip().lower(), "latest") for metric, mode in found.items()}


def _constraints(algo: Fields) -> tuple[Constraint, ...]:
    """Return the constraints of {"metric": {"min": 1, "max": 2}}."""
    found = []
    for metric, bounds in algo.names("constraints", METRICS).items():
        one = Fields(bounds, f"algoDef.constraints: {metric}", refusals.definition)
        least, most = one.number("min"), one.number("max")
        if (least is None and most is None) or (least is not None and most is not None and least > most):
            raise one.refuse("min and max", f"must be 1 or 2 numbers, min not above max, but they are {shown(bounds)}")
        found.append(Constraint(metric, None if least is None else float(least), None if most is None else float(most)))
    return tuple(found)


def _params(algo: Fields) -> dict[str, str]:
    """Return the algoParams, a list of {name, value}. A value may also be a number or a switch."""
    found: dict[str, str] = {}
    for number, item in enumerate(algo.list("algoParams", most=1000)):
        one = Fields(item, f"algoDef.algoParams[{number}]", refusals.algorithm)
        value = one.get("value")
        if isinstance(value, bool):
            value = str(value).lower()
        elif number_of(value) is not None and not isinstance(value, str):
            value = str(value)
        if not isinstance(value, str) or len(value) > TEXT:
            raise one.refuse("value", f"must be a text of at most {TEXT} characters, but it is {shown(value)}")
        found[one.required("name", most=NAME)] = value
    return found


def _space(top: Fields, algorithm: str) -> dict[str, Any]:
    items = top.list("hyperParams", most=parameters.PARAMETERS)
    listed = top.list("experiments", most=parameters.EXPERIMENTS)
    if algorithm == "ExperimentGridSearch":
        if items or not listed:
            raise Invalid("search.space", "the algorithm ExperimentGridSearch needs experiments with their values, and "
                                          "no hyperParams")
        return {"given": parameters.listed(listed)}
    if listed or not items:
        raise Invalid("search.space", f"the algorithm {algorithm} needs hyperParams with at least 1 parameter, and no "
                                      "experiments")
    return {"parameters": parameters.of_items(items)}


def _consistent(found: Definition, algo: Fields) -> Definition:
    """Return a definition whose parts fit together."""
    names = {one.name for one in found.parameters} | {name for one in found.given for name in one.parameters}
    if found.resource in names:
        raise Invalid("search.algorithm", f"algoParams: ResourceName {shown(found.resource)} is also a parameter")
    if found.algorithm == "Grid":
        parameters.check_grid(found.parameters)
    if found.constraints and found.algorithm in ("CMAES", *WITH_RUNGS):
        raise Invalid("search.algorithm", f"algoDef: {found.algorithm} does not handle constraints")
    if found.terminator and (len(found.objectives) > 1 or found.algorithm in ("ExperimentGridSearch", *WITH_RUNGS)):
        raise algo.refuse("terminator", f"does not work with {found.algorithm} and {len(found.objectives)} objectives")
    if found.warm_start and found.algorithm in BUILT_IN and found.algorithm not in ASKING:
        raise algo.refuse("warmStart", f"has no effect on {found.algorithm}; it works with {', '.join(ASKING)}")
    return found


def _echo(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of the request that answers repeat: without unused members, and with types in lower case."""
    def used(item: Mapping[str, Any]) -> dict[str, Any]:
        return {key: one for key, one in item.items() if one is not None and one not in ([], {}, "")}

    def parameter(item: Mapping[str, Any]) -> dict[str, Any]:
        lower = {key: item[key].lower() for key in ("type", "dataType") if isinstance(item.get(key), str)}
        return used(item) | lower | {"userDefined": bool(item.get("userDefined", False))}

    found: dict[str, Any] = {"algoDef": used(value["algoDef"])}
    if value.get("hyperParams"):
        found["hyperParams"] = [parameter(item) for item in value["hyperParams"]]
    if value.get("experiments"):
        found["experiments"] = value["experiments"]
    return found


