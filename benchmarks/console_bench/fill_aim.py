"""Fill a repository of Aim with runs, by its API. The Python of Aim's environment runs this file.

    python fill_aim.py FOLDER RUNS STEPS LONG FEW

The last LONG runs have STEPS steps, the others FEW.
"""

from __future__ import annotations

import sys

from aim import Repo, Run  # type: ignore[import-not-found,unused-ignore]
from shared_losses import losses


def main() -> None:
    folder, (runs, steps, long, few) = sys.argv[1], map(int, sys.argv[2:6])
    Repo.from_path(folder, init=True)
    for number in range(1, runs + 1):
        run = Run(repo=folder, experiment="bench", system_tracking_interval=None, capture_terminal_logs=False)
        run["hparams"] = {"lr": 0.1}
        for step, loss in enumerate(losses(number, steps if number > runs - long else few), 1):
            run.track(loss, name="loss", step=step)
        run.close()


if __name__ == "__main__":
    main()
