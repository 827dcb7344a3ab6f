"""The search by Ray Tune: ASHA, one actor of one CPU per trial. Runs in an environment of its own, which has Ray.

    PYTHON benchmarks/hpo_bench/ray_side.py TASK DATA < CONFIGURATIONS
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from hpo_bench.asha import EPOCHS, ETA, PLACES


def trained_once(config: dict) -> None:
    """Train one configuration, and report after each epoch."""
    config = config["one"]
    sys.path.insert(0, config["task"])
    from network import trained
    from ray import tune

    for epoch, score in enumerate(trained(config, EPOCHS, config["data"]), 1):
        tune.report({"score": score, "epoch": epoch, "at": time.time(), "number": config["number"]})


def short(config: dict) -> None:
    """Make a few steps, and report their times."""
    sys.path.insert(0, config["task"])
    from gap import train
    from ray import tune

    tune.report(train())


def main() -> None:
    import ray
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler

    task, data = sys.argv[1:3]
    found = [one | {"task": task, "data": data, "number": number} for number, one in enumerate(json.load(sys.stdin))]
    ray.init(num_cpus=PLACES, include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory() as folder:
        ran = tune.RunConfig(storage_path=folder, verbose=0)
        halving = ASHAScheduler(time_attr="epoch", max_t=EPOCHS, grace_period=1, reduction_factor=ETA)
        began = time.time()
        searched = tune.Tuner(
            tune.with_resources(trained_once, {"cpu": 1}), param_space={"one": tune.grid_search(found)}, run_config=ran,
            tune_config=tune.TuneConfig(
                metric="score", mode="max", max_concurrent_trials=PLACES, scheduler=halving)).fit()
        seconds = time.time() - began
        rows = [[float(value) for value in row] for one in searched
                for row in one.metrics_dataframe[["number", "epoch", "score", "at"]].itertuples(index=False)]
        shorts = tune.Tuner(
            tune.with_resources(short, {"cpu": 1}), param_space={"task": task, "n": tune.grid_search(list(range(8)))},
            run_config=ran, tune_config=tune.TuneConfig(max_concurrent_trials=1)).fit()
        times = [{name: one.metrics[name] for name in ("first", "end")} for one in shorts]
    print(json.dumps({"began": began, "seconds": seconds, "rows": rows, "times": times}))


if __name__ == "__main__":
    main()
