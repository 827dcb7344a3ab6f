"""Suggestions of the process with Optuna: the same after every death of the process."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import psutil
import pytest
from simulated import RATE, definition
from support import PATIENCE, VOLUME, eventually

from local_backend import own_process
from local_backend.hypersearch import suggester as suggester_process
from local_backend.hypersearch.definition import Definition, Known, Value
from local_backend.hypersearch.questions import SuggesterFailed, SuggesterLost
from local_backend.hypersearch.suggesting import Suggester

pytestmark = pytest.mark.integration
SPACE = [
    RATE,
    {"name": "optimizer", "type": "Discrete", "dataType": "STR", "discreateStrVal": ["sgd", "adam"]},
    {"name": "momentum", "type": "Range", "dataType": "DOUBLE", "minDbVal": 1e-4, "maxDbVal": 1, "log": True,
     "if": {"optimizer": "sgd"}},
    {"name": "layers", "type": "Range", "dataType": "INT", "minIntVal": 1, "maxIntVal": 9, "step": 2},
    {"name": "decay", "type": "Range", "dataType": "DOUBLE", "minDbVal": -4, "maxDbVal": -1, "power": 10},
]
SEVERAL = {"loss": "minimize", "layers": "maximize"}


@contextlib.contextmanager
def suggester() -> Iterator[Suggester]:
    one = Suggester(patience=120)
    try:
        yield one
    finally:
        one.close()


def kill(one: Suggester) -> None:
    """Kill all processes of a suggester, and wait for their ends."""
    for pid in one.processes:
        process = psutil.Process(pid)
        os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(psutil.NoSuchProcess):
            process.wait(PATIENCE)


def ended(one: Known, told: int) -> Known:
    """Return an experiment with its result."""
    values = one.parameters
    loss = abs(float(values["rate"]) - 0.3) + 0.01 * float(values["layers"]) + float(values["decay"])
    metrics = {"loss": loss, "layers": float(values["layers"]), "latency": 10 * float(values["rate"])}
    return replace(one, state="done", value=loss, told=told, metrics=metrics)


def search(found: Definition, killed: bool, count: int, each: int = 4) -> list[dict[str, Value]]:
    """Return the first experiments of a search. Some are still running while later ones are suggested."""
    known: list[Known] = []
    told = 0
    with suggester() as one:
        while len(known) < count:
            if killed:
                kill(one)
            for values in one.ask(found, 5, known, each).result():
                known.append(Known(len(known), values, "running"))
            for index, other in enumerate(known):
                if other.told is None and index % 4:
                    known[index] = ended(other, told)
                    told += 1
    return [dict(one.parameters) for one in known]


CASES: Sequence[tuple[str, Sequence[tuple[str, str]], dict[str, Any]]] = [
    ("Tpe", [("WarmUp", "6")], {}),
    ("Tpe", [("WarmUp", "6"), ("EICandidate", "5"), ("GoodRatio", "0.5"), ("GoodMax", "4")], {"objectives": SEVERAL}),
    ("NSGA2", [("PopulationSize", "5")], {"objectives": SEVERAL}),
    ("CMAES", [], {}),
    ("Bayesian", [("InitPoints", "4")], {}),
]


@pytest.mark.parametrize(("algorithm", "params", "more"), CASES)
def test_killed_processes_change_no_suggestion(algorithm: str, params: Any, more: dict[str, Any]) -> None:
    found = definition(algorithm, *params, space=SPACE, **more)
    count = 12 if algorithm == "Bayesian" else 20
    each = 4 if VOLUME > 1 or algorithm in ("Bayesian", "NSGA2") else 7
    table = search(found, killed=False, count=count, each=each)
    assert search(found, killed=True, count=count, each=each) == table
    assert len({str(one) for one in table}) > count // 2
    for values in table:
        assert ("momentum" in values) == (values["optimizer"] == "sgd")
        assert values["layers"] in (1, 3, 5, 7, 9)
        assert 1e-4 <= float(values["decay"]) <= 0.1


def test_suggestions_may_be_asked_for_at_once_or_one_by_one() -> None:
    """A batch that is asked for again after a part of it was stored continues as it would have."""
    found = definition("Tpe", ("WarmUp", "3"), space=SPACE)
    with suggester() as one:
        start = one.ask(found, 5, [], 8).result()
        known = [ended(Known(number, values, "running"), number) for number, values in enumerate(start)]
        at_once = one.ask(found, 5, known, 3).result()
        first = Known(8, at_once[0], "waiting")
        assert one.ask(found, 5, [*known, first], 2).result() == at_once[1:]
        assert one.ask(found, 6, known, 3).result() != at_once
        assert one.ask(found, 5, [replace(other, value=-(other.value or 0)) for other in known], 3).result() != at_once


@pytest.mark.parametrize("algorithm", ["Tpe", "CMAES"])
def test_samplers_find_better_values_than_random_draws(algorithm: str) -> None:
    table = search(definition(algorithm, space=SPACE), killed=False, count=90, each=6)

    def losses(part: Sequence[dict[str, Value]]) -> float:
        values = sorted(ended(Known(0, one, "running"), 0).value or 0.0 for one in part)
        return values[len(values) // 2]

    assert losses(table[-30:]) < losses(table[:12]) * 0.8


def test_constraints_keep_suggestions_away() -> None:
    """The best loss is at rate 0.3, where the latency is 3."""
    free, bound = (search(definition("Tpe", ("WarmUp", "6"), space=SPACE, **more), killed=False, count=60, each=6)
                   for more in ({}, {"constraints": {"latency": {"max": 1}}}))

    def kept(table: Sequence[dict[str, Value]]) -> int:
        return sum(float(one["rate"]) <= 0.1 for one in table[30:])

    assert kept(bound) > kept(free) + 5


def test_the_results_of_an_earlier_search_count() -> None:
    found = definition("Tpe", ("WarmUp", "6"), space=SPACE)
    with suggester() as one:
        table = one.ask(found, 5, [], 20).result()
        earlier = [ended(Known(number, values, "running"), number) for number, values in enumerate(table)]
        outside = [Known(99, {"other": 1}, "done", value=0.0, told=99)]
        warm = one.ask(found, 7, [], 3, earlier).result()
        assert warm != one.ask(found, 7, [], 3).result()
        assert warm == one.ask(found, 7, [], 3, [*earlier, *outside]).result()


def test_importances_find_the_parameter_that_matters() -> None:
    space = [RATE, RATE | {"name": "other"}]
    found = definition("Random", space=space)
    with suggester() as one:
        table = one.ask(definition("Tpe", ("WarmUp", "100"), space=space), 1, [], 80).result()
        known = [Known(number, values, "done", value=float(values["rate"]) ** 2, told=number)
                 for number, values in enumerate(table)]
        importances = one.importances(found, known).result()
        assert one.importances(found, []).result() == {}
        assert one.importances(found, [replace(entry, value=0.5) for entry in known]).result() == {}
    assert importances["rate"] > 4 * importances["other"]


def test_a_lost_process_is_told_and_replaced() -> None:
    found = definition("Tpe", space=SPACE)
    with suggester() as one:
        first = one.ask(found, 5, [], 2).result()
        (pid,) = one.processes
        os.kill(pid, signal.SIGSTOP)
        waiting = one.ask(found, 5, [], 2)
        eventually(lambda: not one._idle, "the process has the question")
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(SuggesterLost):
            waiting.result()
        assert one.ask(found, 5, [], 2).result() == first
        broken = replace(found, params={"WarmUp": "many"})
        with pytest.raises(SuggesterFailed):
            one.ask(broken, 5, [], 2).result()
        assert one.ask(found, 5, [], 2).result() == first
    assert one.processes == ()


def test_a_process_without_requests_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The main function runs here, with its standard input and output replaced."""
    theirs, ours = os.pipe()
    back = os.dup(0)
    os.dup2(theirs, 0)
    try:
        monkeypatch.setattr(suggester_process, "IDLE", 0.01)
        monkeypatch.setattr(own_process, "may_be_killed", lambda score: None)
        assert suggester_process.main() == 0
    finally:
        os.dup2(back, 0)
        for one in (theirs, ours, back):
            os.close(one)
