"""The form that starts a search: its fields, their mistakes, the definition and the command that it means. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from starlette.datastructures import FormData

from dlicmd.contract.argv import split_args
from dlicmd.contract.metric_names import is_lower_better
from dlicmd.contract.program_words import placed
from dlicmd.contract.search_values import (
    GRID,
    MAXIMIZE,
    MINIMIZE,
    PARALLEL,
    TRIALS,
    WITH_RESOURCE,
    parameter,
    resource,
)
from local_backend.console.changes import field, texts_of

#: Rows for parameters that an empty form has, and the most that a form has.
ROWS, MOST_ROWS = 3, 50
DEFAULT = "TPE"
_LARGEST = 10**9


@dataclass(frozen=True)
class SearchForm:
    """The texts of the form. `rows` are the names and the values of the parameters."""

    rows: Sequence[tuple[str, str]] = ()
    name: str = ""
    words: str = ""
    workers: str = ""
    metric: str = ""
    direction: str = ""
    algorithm: str = DEFAULT
    trials: str = str(TRIALS)
    parallel: str = str(PARALLEL)
    minutes: str = ""
    resource: str = ""

    @property
    def given(self) -> list[tuple[int, str, str]]:
        """The rows with values, each with its place, and without blanks at the ends of its texts."""
        return [(at, name.strip(), values.strip()) for at, (name, values) in enumerate(self.rows) if values.strip()]

    def with_rows(self, least: int) -> SearchForm:
        """Return the form with empty rows at its end, up to a number of rows."""
        rows = list(self.rows)[:MOST_ROWS]
        return replace(self, rows=[*rows, *[("", "")] * (min(least, MOST_ROWS) - len(rows))])


@dataclass(frozen=True)
class CheckedForm:
    """What a form means: the definition of the search without modelSpec, the words of the program with the names of the
    parameters in braces, and the number of workers. `problems` are its mistakes by the name of the field."""

    definition: Mapping[str, Any]
    words: Sequence[str]
    workers: int | None
    problems: Mapping[str, str]


def form_of(form: FormData) -> SearchForm:
    """Return the texts of a form that was sent."""
    names = ("name", "words", "workers", "metric", "direction", "algorithm", "trials", "parallel", "minutes",
             "resource")
    rows = list(zip(texts_of(form, "parameter"), texts_of(form, "values"), strict=False))
    return SearchForm(rows=rows[:MOST_ROWS], **{one: field(form, one) for one in names})


def checked(form: SearchForm) -> CheckedForm:
    """Return what a form means, with its mistakes."""
    problems: dict[str, str] = {}
    space = _space(form, problems)
    metric, direction = form.metric, form.direction
    if not metric:
        problems["metric"] = "Name the metric that the program reports, such as accuracy"
    if direction not in (MINIMIZE, MAXIMIZE):
        direction = MINIMIZE if is_lower_better(metric) else MAXIMIZE
    numbers = {name: _number(problems, name, getattr(form, name))
               for name in ("trials", "parallel", "minutes", "workers")}
    params = _noted(problems, "resource", lambda: resource(form.resource), []) if form.resource else []
    if form.algorithm.lower() in WITH_RESOURCE and not form.resource:
        problems["resource"] = f"{form.algorithm} needs a resource, such as epochs:27"
    trials = numbers["trials"] or (-1 if form.algorithm.lower() == GRID.lower() else TRIALS)
    algorithm = {
        "algorithm": form.algorithm or DEFAULT, "maxRunTime": numbers["minutes"] or -1, "maxJobNum": trials,
        "maxParalleJobNum": numbers["parallel"] or (PARALLEL if trials < 0 else min(PARALLEL, trials)),
        "objectiveMetric": metric, "objective": direction, **({"algoParams": params} if params else {}),
    }
    words = placed(split_args(form.words), [one["name"] for one in space])
    named = {"hpoName": form.name} if form.name else {}
    return CheckedForm({**named, "algoDef": algorithm, "hyperParams": space}, words, numbers["workers"], problems)


def command(
    form: CheckedForm, rows: Sequence[tuple[int, str, str]], source: Sequence[str], stored: Sequence[str]
) -> str:
    """Return the command that starts the same search; empty while the form has mistakes. `source` are the options that
    name the code, and `stored` the words with which it is stored."""
    if form.problems:
        return ""
    algorithm = form.definition["algoDef"]
    words = ["dlicmd", "search", *source]
    for _, name, values in rows:
        words += ["--param", f"{name}={values}"]
    words += ["--metric", f"{algorithm['objectiveMetric']}:{algorithm['objective']}"]
    params = {one["name"]: one["value"] for one in algorithm.get("algoParams", ())}
    options = {
        "--trials": algorithm["maxJobNum"] if algorithm["maxJobNum"] > 0 else None,
        "--parallel": algorithm["maxParalleJobNum"], "--minutes": algorithm["maxRunTime"] if (
            algorithm["maxRunTime"] > 0) else None,
        "--algorithm": algorithm["algorithm"] if algorithm["algorithm"] != DEFAULT else None,
        "--resource": f"{params['ResourceName']}:{params['ResourceValue']}" if params else None,
        "--name": form.definition.get("hpoName"), "--workers": form.workers,
    }
    for option, value in options.items():
        if value is not None:
            words += [option, str(value)]
    return " ".join(map(shlex.quote, [*words, *(["--", *form.words] if form.words or stored else [])]))


def _space(form: SearchForm, problems: dict[str, str]) -> list[dict[str, Any]]:
    """Return the parameters of a form."""
    found: dict[str, dict[str, Any]] = {}
    for at, name, values in form.given:
        place = f"parameter-{at}"
        if not name:
            problems[place] = "Name the parameter"
        elif name in found:
            problems[place] = f"The parameter {name} is given twice"
        else:
            one = _noted(problems, place, partial(parameter, name, values), None)
            if one is not None:
                found[name] = one
    if not form.given:
        problems["parameter-0"] = "Give the values of at least one parameter"
    return list(found.values())


def _number(problems: dict[str, str], name: str, text: str) -> int | None:
    """Return a whole number of at least 1, None for no text."""
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and 0 < int(text[:20]) <= _LARGEST):
        problems[name] = f"{text[:40]!r} is not a whole number of at least 1"
        return None
    return int(text)


def _noted(problems: dict[str, str], place: str, work: Callable[[], Any], otherwise: Any) -> Any:
    """Return what some work returns. Note its mistake at a place."""
    try:
        return work()
    except ValueError as problem:
        problems[place] = str(problem)
        return otherwise
