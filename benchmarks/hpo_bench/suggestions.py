"""How long one suggestion of TPE takes with many results: ours, and Optuna with its RDB storage on SQLite.

benchmarks/hpo.py calls `measure`. Both sides tell one more result before each suggestion, as a search does.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from pathlib import Path
from statistics import median

import optuna

from local_backend.hypersearch.definition import Definition, Known, Value
from local_backend.hypersearch.reading import parse
from local_backend.hypersearch.suggesting import Suggester

_NAMES = ("a", "b", "c", "d")


def _definition() -> Definition:
    return parse(json.dumps({
        "modelSpec": {"args": "--exec-start PyTorch --model-main train.py"},
        "algoDef": {"algorithm": "Tpe", "objectiveMetric": "loss", "objective": "minimize"},
        "hyperParams": [{"name": name, "type": "Range", "dataType": "DOUBLE", "minDbVal": 0, "maxDbVal": 1}
                        for name in _NAMES],
    }))


def _loss(values: dict[str, Value]) -> float:
    return sum((float(value) - 0.3) ** 2 for value in values.values())


def ours(told: int, asks: int) -> float:
    """Return the median seconds of one suggestion of the product, its process and the exchange with it included."""
    one, source, known = _definition(), random.Random(1), []
    for number in range(told):
        values: dict[str, Value] = {name: source.random() for name in _NAMES}
        known.append(Known(number, values, "done", value=_loss(values), told=number))
    suggester, times = Suggester(), []
    try:
        for _ in range(asks + 1):
            begin = time.perf_counter()
            values = suggester.ask(one, 1, known, 1).result()[0]
            times.append(time.perf_counter() - begin)
            known.append(Known(len(known), values, "done", value=_loss(values), told=len(known)))
    finally:
        suggester.close()
    return median(times[1:])  # the first one starts the process and tells all results


def rdb(told: int, asks: int) -> float:
    """Return the median seconds of ask and tell of Optuna with its RDB storage and the same settings."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    source, times = random.Random(1), []
    space = {name: optuna.distributions.FloatDistribution(0, 1) for name in _NAMES}
    with tempfile.TemporaryDirectory() as folder:
        study = optuna.create_study(storage=f"sqlite:///{Path(folder) / 'study.db'}",
                                    sampler=optuna.samplers.TPESampler(seed=1, n_startup_trials=20))
        trials = []
        for _ in range(told):
            values = {name: source.random() for name in _NAMES}
            trials.append(optuna.create_trial(params=values, distributions=space, value=_loss(values)))
        study.add_trials(trials)
        for _ in range(asks + 1):
            begin = time.perf_counter()
            trial = study.ask()
            values = {name: trial.suggest_float(name, 0, 1) for name in _NAMES}
            study.tell(trial, _loss(values))
            times.append(time.perf_counter() - begin)
    return median(times[1:])


def measure(told: int = 1000, asks: int = 30) -> tuple[float, float]:
    """Return the seconds of one suggestion with `told` results: ours, and those of Optuna's RDB storage."""
    return ours(told, asks), rdb(told, asks)


if __name__ == "__main__":
    for results in (100, 1000):
        mine, other = measure(results)
        print(f"{results} results: {1000 * mine:.1f} ms, Optuna with its RDB storage {1000 * other:.1f} ms, "
              f"ratio {mine / other:.2f}")
