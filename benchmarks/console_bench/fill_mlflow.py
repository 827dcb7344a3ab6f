"""Fill a store of MLflow with runs, by its API. The Python of MLflow's environment runs this file.

    python fill_mlflow.py URI RUNS STEPS LONG FEW

The last LONG runs have STEPS steps, the others FEW.
"""

from __future__ import annotations

import sys

from mlflow import MlflowClient  # type: ignore[import-not-found,unused-ignore]
from mlflow.entities import Metric, Param  # type: ignore[import-not-found,unused-ignore]
from shared_losses import losses

#: Values of one call, the limit of MLflow.
BATCH = 1000


def main() -> None:
    uri, (runs, steps, long, few) = sys.argv[1], map(int, sys.argv[2:6])
    client = MlflowClient(uri)
    experiment = client.create_experiment("bench")
    for number in range(1, runs + 1):
        run = client.create_run(experiment, run_name=f"run-{number}").info.run_id
        client.log_batch(run, params=[Param("lr", "0.1")])
        found = losses(number, steps if number > runs - long else few)
        values = [Metric("loss", loss, int(1.7e12) + 1000 * step, step) for step, loss in enumerate(found, 1)]
        for at in range(0, len(values), BATCH):
            client.log_batch(run, values[at : at + BATCH])
        client.set_terminated(run)


if __name__ == "__main__":
    main()
