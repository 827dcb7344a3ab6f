"""The output of a worker: its log on stderr, and per-batch values on stdout or to the user's logger."""

from __future__ import annotations

import logging
import sys
from typing import Any

from local_backend.elastic.hub.events import BatchResult
from local_backend.elastic.script.hooks import LoggerHooks, Values
from local_backend.elastic.script.meter import Meter, default_block


class WorkerLog:
    """The worker's log on stderr, in the form of WMLA's log, and the per-batch output on stdout or to a logger."""

    def __init__(self, number: int, quiet: bool, logger: Any) -> None:
        """`quiet`: write nothing to stderr and stdout. `logger`: the user's logger for workers."""
        self._hooks = LoggerHooks(logger) if logger is not None else None
        self._blocks = not quiet and logger is None
        self._log = logging.Logger(f"worker-{number}", logging.CRITICAL + 1 if quiet else logging.INFO)
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s - root - %(levelname)s - %(message)s"))
        self._log.addHandler(handler)
        self._meter, self._tests = Meter(), Meter()
        self._training = False
        self.count = 0

    def say(self, text: str) -> None:
        self._log.info(text)

    def begin_epoch(self) -> None:
        self._meter, self._tests = Meter(), Meter()

    def batch(self, result: BatchResult, epoch: int, counter: int, workers: int) -> None:
        """Report a batch of this worker: its own loss, the running accuracy. `counter`: see `Member._counter`."""
        self._meter.add(result)
        self.count += 1
        if self._blocks:
            print(default_block(self.count, counter, result.loss, self._meter.accuracy), flush=True)
        if self._hooks:
            metrics = {"loss": result.loss, "accuracy": (result.correct or 0) / result.count, **result.metrics}
            self._hooks.train_metrics(
                Values(result.loss, self._meter.accuracy, self.count, metrics, self.count, epoch, workers)
            )

    def tested(self, result: BatchResult, epoch: int, workers: int) -> None:
        """Report a validation batch of this worker: the values over its batches so far."""
        number = self._tests.batches
        self._tests.add(result)
        known = {} if result.correct is None else {"accuracy": self._tests.accuracy}
        if self._blocks:
            for name, value in {**known, "loss": self._tests.loss_of_batches}.items():
                print(f"Iteration {number}: tag test_{name}, simple_value {round(value, 5)}", flush=True)
        if self._hooks:
            metrics = {**self._tests.metrics, "loss": self._tests.loss_of_batches}
            self._hooks.test_metrics(
                Values(metrics["loss"], self._tests.accuracy, number, metrics, number, epoch, workers)
            )

    def members(self, generation: int, members: tuple[int, ...]) -> None:
        """Log the members that take part from now on."""
        self.say(f"new communicate id {generation}")
        self.say("------cluster begin-------")
        for member in members:
            self.say(f"worker-{member}")
        self.say("------cluster end-------")

    def begin_training(self) -> None:
        self._training = True
        self.say("--------START TRAINING--------")
        if self._hooks:
            self._hooks.train_begin()

    def end_training(self) -> None:
        """Report the end of training, at least for this worker. Does nothing if training had not begun or has already
        ended."""
        if not self._training:
            return
        self._training = False
        if self._hooks:
            self._hooks.train_end()
        if self._blocks:
            print(f"--------END TRAINING: completed {self.count} iterations --------", flush=True)
