"""A plain training with FabricModel; the checks of a step run in every other step.

    python checks_train.py MODEL PAIRS

Prints a JSON object with lists of seconds: of steps with and without checks ("with", "without"), of checks for
numbers that are not finite ("finite"), and of comparisons of states ("compare"). The seconds are processor time of
the training thread, on GPUs wall time.
"""

import contextlib
import json
import sys
import time
from itertools import pairwise

import parts
import torch
import torch.nn.functional as F
from fabric_model import FabricModel

from local_backend.elastic.worker import agreement, finishing

CLOCK = time.monotonic if torch.cuda.is_available() else time.thread_time


#: Pairs of steps at the start that are not counted.
EARLY = 5


class Silent:
    """A logger without output."""


class Clock(torch.optim.SGD):
    """SGD with momentum that notes when each step was applied."""

    def __init__(self, parameters) -> None:
        super().__init__(parameters, lr=0.001, momentum=0.9)

    def step(self, closure=None):
        super().step(closure)
        TIMES.append(CLOCK())


TIMES: list[float] = []


def alternate() -> list[float]:
    """Run the checks in steps 0, 2, ... only from now on; return the list of seconds of checks for finite numbers."""
    finite, up = finishing.all_finite, finishing.StepGuard.up
    seconds: list[float] = []

    def checked() -> bool:
        return len(TIMES) % 2 == 0

    def all_finite(tensors) -> bool:
        if not checked():
            return True
        began = CLOCK()
        found = finite(tensors)
        seconds.append(CLOCK() - began)
        return found

    finishing.all_finite = all_finite
    finishing.StepGuard.up = lambda guard: up(guard) if checked() else contextlib.nullcontext()
    return seconds


def comparison() -> list[float]:
    """Take the digest of the state after the epoch, as several workers do; return the list of its seconds."""
    seconds: list[float] = []

    def at_boundary(self, *_, **__) -> None:
        began = CLOCK()
        _ = agreement.table_of(self._job, True).digest
        seconds.append(CLOCK() - began)

    agreement.Agreement.at_boundary = at_boundary
    return seconds


def main() -> None:
    name, pairs = sys.argv[1], int(sys.argv[2])
    finite, compared = alternate(), comparison()
    model = parts.network(parts.SIZES[name])
    steps = 2 * (EARLY + pairs) + 1
    fabric = FabricModel(
        model, parts.datasets_function(name, steps), F.cross_entropy, Clock(model.parameters()),
        driver_logger=Silent(), worker_logger=Silent(),
    )
    fabric.train(1, parts.SIZES[name].batch, parts.SHARDS, validation_freq=0, checkpoint_freq=0)
    gaps = [right - left for left, right in pairwise(TIMES)]
    # The first gap belongs to step 1, which has no checks.
    without, checked = gaps[2 * EARLY :: 2], gaps[2 * EARLY + 1 :: 2]
    print(json.dumps({"with": checked, "without": without, "finite": finite[EARLY:], "compare": compared}))


main()
