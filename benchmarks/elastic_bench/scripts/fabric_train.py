"""The same training with FabricModel. It trains on request; each block is a training of its own.

    python fabric_train.py MODEL

Each line of standard input is a training: the mode for the attributes of the job, the number of steps, and the step
to mark ("exact 200 5"). The script prints "done" on a line of its own after each training. It stamps committed steps
in $BENCH_STAMPS/committed.
"""

import dataclasses
import os
import sys
import time

import parts
import torch.nn.functional as F
from fabric_model import FabricModel

from local_backend.elastic.driver.launcher import Allocation


class Silent:
    """A logger of workers without output: the other side prints nothing either."""


class Commits:
    """A logger of the driver: writes "step seconds workers" for each committed step."""

    def __init__(self) -> None:
        path = os.path.join(os.environ["BENCH_STAMPS"], "committed")
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def log_train_metrics(self, metrics, iteration, epoch, workers) -> None:
        if iteration % parts.SHARDS == 0:
            os.write(self._file, f"{iteration // parts.SHARDS} {time.monotonic():.6f} {workers}\n".encode())


def check_mode(mode: str) -> None:
    """Raise SystemExit when this engine takes no mode, and therefore has only the exact one."""
    if mode != "exact" and "attributes" not in {field.name for field in dataclasses.fields(Allocation)}:
        raise SystemExit(f"there is no {mode} mode to measure: an allocation has no attributes")


def main() -> None:
    name = sys.argv[1]
    model, commits = parts.network(parts.SIZES[name]), Commits()
    for line in sys.stdin:
        mode, steps, mark = line.split()
        check_mode(mode)
        optimizer = parts.StampingSGD(model.parameters(), (int(mark), int(steps)))
        fabric = FabricModel(
            model, parts.datasets_function(name, int(steps)), F.cross_entropy, optimizer,
            driver_logger=commits, worker_logger=Silent(),
        )
        fabric.train(1, parts.SIZES[name].batch, parts.SHARDS, validation_freq=0, checkpoint_freq=0)
        print("done", flush=True)


main()
