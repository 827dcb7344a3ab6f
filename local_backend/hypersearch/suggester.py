"""The process that suggests experiments with the samplers of Optuna. The server never loads Optuna; suggesting.py
starts this process.

Each line of standard input is a request as JSON, each line of standard output its answer. A suggestion is a function
of the request alone: every one has samplers of its own, seeded by the seed of the search and the number of the
suggestion. The process keeps results that it has read, so that the next request of a search is faster. It may be
killed at any time.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import sys
import warnings
from collections import OrderedDict
from collections.abc import Container, Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from local_backend import own_process
from local_backend.hypersearch import space
from local_backend.hypersearch.definition import Definition, Parameter, Value

#: Seconds without a request after which the process ends, to free its memory.
IDLE = 60.0
#: Searches whose results the process keeps.
_KEPT = 8
_WARM_UP, _CANDIDATES, _GOOD_RATIO, _GOOD_MAX, _INIT_POINTS, _POPULATION = 20, 24, 0.25, 25, 10, 50
#: A result as requests have it: parameters, the values of the objectives, and by how much it violates each constraint.
Result = tuple[dict[str, Value], list[float], list[float]]


class _Trials(InMemoryStorage):
    """The trials of a study. Those that stand for running experiments exist for one suggestion."""

    def __init__(self) -> None:
        super().__init__()
        self._lasting: set[int] = set()
        self._passing = 0

    def keep(self) -> None:
        """Keep the present trials that are not running."""
        self._lasting |= {one.number for one in super().get_all_trials(0, False) if one.state.is_finished()}

    def forget(self) -> None:
        """Hide the present trials that are running."""
        self._passing = len(super().get_all_trials(0, False))

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        found = super().get_all_trials(study_id, deepcopy, states)
        return [one for one in found if one.number in self._lasting or one.number >= self._passing]


class _Nsga2(optuna.samplers.NSGAIISampler):
    """The sampler of Optuna, with parents in a fixed order: it keeps their set only, and draws from them by position.
    """

    def select_parent(self, study: optuna.Study, generation: int) -> list[FrozenTrial]:
        return sorted(super().select_parent(study, generation), key=lambda one: one.number)


class _Search:
    """The study of one search, with the results that have been told so far."""

    def __init__(self, definition: Definition, seed: int) -> None:
        self._definition, self._seed = definition, seed
        self._parameters = {one.name: one for one in definition.parameters}
        self._distributions = {one.name: _distribution(one) for one in definition.parameters}
        self._results: list[Result] = []
        self._complete = 0
        self._begin()

    def _begin(self) -> None:
        self._storage = _Trials()
        self._results, self._complete = [], 0
        self.study = optuna.create_study(
            storage=self._storage, study_name="search",
            directions=["maximize" if most else "minimize" for _, most in self._definition.objectives])

    def tell(self, results: Sequence[Result]) -> None:
        """Let the study have exactly these results, in this order."""
        if self._results != results[: len(self._results)]:
            self._begin()
        for values, objectives, violations in results[len(self._results) :]:
            trial = self._trial(values, TrialState.COMPLETE, objectives, violations)
            if trial is not None:
                self.study.add_trial(trial)
                self._complete += 1
        self._storage.keep()
        self._results = list(results)

    def _trial(self, values: Mapping[str, Value], state: TrialState, objectives: Sequence[float] | None = None,
               violations: Sequence[float] = ()) -> FrozenTrial | None:
        """Return a trial; None if the space does not have its values, as in the results of an earlier search."""
        places = {name: place for name, one in self._parameters.items()
                  if name in values and (place := space.place(one, values[name])) is not None}
        needed = {name for name, one in self._parameters.items() if space.applies(one, values)}
        if places.keys() != needed or values.keys() - needed:
            return None
        generation = self._complete // int(self._definition.params.get("PopulationSize", _POPULATION))
        return create_trial(
            state=state, values=objectives, params=places,
            distributions={name: self._distributions[name] for name in places},
            system_attrs={_Nsga2._get_generation_key(): generation} if self._definition.algorithm == "NSGA2" else None,
            constraints={str(number): one for number, one in enumerate(violations)} or None)

    def ask(self, running: Sequence[Mapping[str, Value]], number: int, count: int) -> list[dict[str, Value]]:
        """Return `count` suggestions, the first of which has this number in the search."""
        trials = [trial for values in running if (trial := self._trial(values, TrialState.RUNNING)) is not None]
        try:
            for trial in trials:
                self.study.add_trial(trial)
            return [self._suggestion(number + index) for index in range(count)]
        finally:
            self._storage.forget()

    def _suggestion(self, number: int) -> dict[str, Value]:
        self.study.sampler = _sampler(self._definition, space.seed_of(self._seed, "suggestion", number))
        trial = self.study.ask()
        found: dict[str, Value] = {}
        for one in space.in_order(self._definition.parameters):
            if space.applies(one, found):
                found[one.name] = space.at(one, trial._suggest(one.name, self._distributions[one.name]))
        return {name: found[name] for name in self._parameters if name in found}

    def importances(self) -> dict[str, float]:
        """Return the importance of each parameter, by PED-ANOVA; nothing with too few results, or with equal ones."""
        several = sum(not one.single() for one in self._distributions.values())
        if not several or len({objectives[0] for _, objectives, _ in self._results}) < 2 or self._complete < 2:
            return {}
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        maximize = self._definition.maximize
        found = optuna.importance.get_param_importances(
            self.study, evaluator=evaluator,
            target=lambda trial: -trial.values[0] if maximize else trial.values[0])
        return {name: float(value) for name, value in found.items() if math.isfinite(value)}


def _distribution(one: Parameter) -> BaseDistribution:
    kind, low, high, log = space.axis(one)
    if kind == "choice":
        return CategoricalDistribution(tuple(range(len(one.choices))))
    if kind == "whole":
        return IntDistribution(int(low), int(high), log)
    return FloatDistribution(low, high, log)


def _sampler(definition: Definition, seed: int) -> optuna.samplers.BaseSampler:
    params = definition.params
    if definition.algorithm == "Bayesian":
        return optuna.samplers.GPSampler(
            seed=seed, n_startup_trials=int(params.get("InitPoints", _INIT_POINTS)), warn_independent_sampling=False,
            deterministic_objective=params.get("Noiseless", "true").strip().lower() == "true")
    if definition.algorithm == "NSGA2":
        return _Nsga2(seed=seed, population_size=int(params.get("PopulationSize", _POPULATION)))
    ratio, most = float(params.get("GoodRatio", _GOOD_RATIO)), int(params.get("GoodMax", _GOOD_MAX))
    warm_up = int(params.get("WarmUp", _WARM_UP))
    # Conditional parameters need samplers that look at each group of parameters, or each parameter, on its own.
    conditional = any(one.when for one in definition.parameters)
    return optuna.samplers.TPESampler(
        seed=seed, n_startup_trials=min(warm_up, definition.max_experiments or warm_up),
        n_ei_candidates=int(params.get("EICandidate", _CANDIDATES)),
        gamma=lambda n: min(math.ceil(ratio * n), most), multivariate=False if conditional else None)


class Requests:
    """Answers requests, and keeps the studies of the latest searches."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, int], _Search] = OrderedDict()

    def answer(self, request: Mapping[str, Any]) -> Any:
        """Return the answer to a request."""
        definition, seed = Definition.from_json(request["definition"]), int(request["seed"])
        results: list[Result] = [(values, objectives, violations) for values, objectives, violations in request["told"]]
        if request["do"] == "importances":
            search = _Search(definition, seed)
            search.tell(results)
            return search.importances()
        number, count = int(request["number"]), int(request["count"])
        if definition.algorithm == "CMAES":
            # Not before it is needed: the library imports scipy.stats, which takes longer than all the rest.
            from local_backend.hypersearch import evolution

            return evolution.suggestions(definition, seed, [(one[0], one[1][0]) for one in results], number, count)
        key = (request["definition"], seed)
        kept = self._kept.pop(key, None) or _Search(definition, seed)
        kept.tell(results)
        found = kept.ask(request["running"], number, count)
        self._kept[key] = kept
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return found



def main() -> int:
    """Answer requests until standard input ends, or until none arrives for `IDLE` seconds. Return the exit code."""
    own_process.may_be_killed(own_process.RUNNER_SCORE)
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    out, sys.stdout = sys.stdout, sys.stderr  # prints of libraries are not part of the answer
    requests = Requests()
    rest = b""
    while True:
        line, found, rest = rest.partition(b"\n")
        if found:
            try:
                answer = {"ok": requests.answer(json.loads(line))}
            except Exception as problem:  # libraries raise any type
                answer = {"problem": f"{type(problem).__name__}: {problem}"}
            with contextlib.suppress(BrokenPipeError):
                print(json.dumps(answer), file=out, flush=True)
            continue
        rest = line
        if not select.select([0], [], [], IDLE)[0]:
            return 0
        piece = os.read(0, 1 << 20)
        if not piece:
            return 0
        rest += piece
