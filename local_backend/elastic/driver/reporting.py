"""The driver's reports on a training: lines that WMLA's users parse, calls of the user's logger, and progress."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from local_backend.elastic.hub.events import (
    BatchResult,
    Closed,
    Commit,
    Rested,
    Stopped,
    Validated,
    accuracy,
    mean_loss,
    mean_metrics,
)
from local_backend.elastic.hub.watching import VALIDATION
from local_backend.elastic.plan import StepPlan
from local_backend.elastic.script.hooks import LoggerHooks, Values
from local_backend.elastic.script.meter import Meter, default_block

#: Seconds between two progress reports.
PROGRESS_INTERVAL = 0.2
#: Seconds over which the speed is averaged.
SPEED_WINDOW = 10.0
#: Variable of a job. With the value 1, a program prints no lines about the platform.
QUIET = "DLI_QUIET"


def say_platform(text: str) -> None:
    """Print a line about the platform, such as a path of the job or the start of the training, unless QUIET is 1."""
    if os.environ.get(QUIET) != "1":
        print(text, flush=True)


#: Makes the reporter of a training from its plan, the steps that an earlier driver has reported, and the results of
#: those steps that belong to the present epoch.
MakeReporter = Callable[[StepPlan, int, list[tuple[BatchResult, ...]]], "Reporter"]


class Listeners(NamedTuple):
    """Functions that receive reports."""

    #: Takes the names of PROGRESS_KEYS.
    progress: Callable[..., None]
    #: Takes a number of committed steps, and metrics.
    metrics: Callable[[int, Mapping[str, float]], None]


class Speed:
    """Samples per second, averaged over the last `SPEED_WINDOW` seconds."""

    def __init__(self, now: float, samples: int = 0) -> None:
        self._marks: deque[tuple[float, int]] = deque([(now, samples)])

    def add(self, now: float, samples: int) -> float | None:
        """Add the number of samples so far. Return the speed, None while it is unknown."""
        self._marks.append((now, samples))
        while len(self._marks) > 2 and self._marks[1][0] < now - SPEED_WINDOW:
            self._marks.popleft()
        (then, before), elapsed = self._marks[0], now - self._marks[0][0]
        return (samples - before) / elapsed if then < now else None


class Reporter:
    """Turns commits and validations into calls of the logger, lines on stdout and progress."""

    def __init__(
        self, hooks: LoggerHooks | None, listeners: Listeners, plan: StepPlan, committed: int,
        rows: list[tuple[BatchResult, ...]],
    ) -> None:
        """`hooks`: of the user's logger, None for the built-in one. An earlier driver of the job has reported
        `committed` steps; `rows`: the results of those steps that belong to the present epoch."""
        self._hooks = hooks
        self._progress, self._metrics = listeners
        self.plan = plan
        self._epochs = plan.epochs
        self._workers = 0
        self._meter = Meter()
        epochs, steps = divmod(committed, plan.steps_per_epoch)
        self._steps = committed
        done = steps // plan.phases * plan.step_samples
        self._samples = epochs * plan.epoch_samples + min(done, plan.epoch_samples)
        # `rows` may cover the whole present epoch, because its boundary is not over yet.
        self._iterations = (committed - len(rows)) // plan.steps_per_epoch * plan.batches_per_epoch
        for results in rows:
            for result in results:
                self._meter.add(result)
                self._iterations += 1
        self._started = self._reported = time.monotonic()
        self._speed = Speed(self._started, self._samples)

    def begin(self) -> None:
        """Report that training starts."""
        say_platform("--------START TRAINING--------")
        if self._hooks:
            self._hooks.train_begin()

    def resumed(self) -> None:
        """Measure the speed anew, because training stood still until now."""
        self._speed = Speed(time.monotonic(), self._samples)

    def commit(self, action: Commit, workers: int) -> None:
        """Call the logger once per batch, in order of shards. `workers`: the present number of workers."""
        self._workers = workers
        if action.step == 0:
            self._meter = Meter()
        for result in action.results:
            self._meter.add(result)
            self._iterations += 1
            self._log_batch(action.epoch)
        if self.plan.phase(action.step) == self.plan.phases - 1:
            self._samples += sum(result.count for result in action.results)
        self._steps += 1

    def show_progress(self, action: Commit) -> None:
        """Report progress if `PROGRESS_INTERVAL` has passed. Call this method after the commit is on record."""
        if time.monotonic() - self._reported >= PROGRESS_INTERVAL:
            self._report(action.epoch)

    def validated(self, action: Validated) -> None:
        """Report the means over the test data to the logger."""
        if self._hooks is None:
            return
        # Loggers read the accuracy, also where it is unknown: then it is 0, as in `Meter.metrics`.
        loss, right = mean_loss(action.results), accuracy(action.results) or 0.0
        metrics = {"loss": loss, "accuracy": right, **mean_metrics(action.results)}
        self._hooks.test_metrics(Values(loss, right, 0, metrics, 0, action.epoch, self._workers))

    def closed(self, action: Closed) -> None:
        """Report the means over the test data as metrics. A repetition has the same values."""
        tested = {
            f"test/{name.removeprefix(VALIDATION)}": value for name, value in action.values.items()
            if name.startswith(VALIDATION)
        }
        if tested:
            self._metrics((action.epoch + 1) * self.plan.steps_per_epoch, tested)

    def stopped(self, action: Stopped) -> None:
        """Print that training ends before the last epoch of the plan."""
        self._epochs = action.epoch + 1
        print(
            f"--------STOP TRAINING: after epoch {self._epochs} of {self.plan.epochs}: {action.why} --------",
            flush=True,
        )

    def rested(self, action: Rested) -> None:
        """Report the progress up to the epoch after which the job rests."""
        self._report(action.epochs - 1)

    def last_progress(self) -> None:
        """Report progress after every step is committed. A driver that found all steps in a checkpoint made none."""
        if self._meter.batches:
            self._report(self._epochs - 1)

    def end(self) -> None:
        """Report the end of training. The model now belongs to the user again."""
        if self._hooks:
            self._hooks.train_end()
        else:
            say_platform(f"--------END TRAINING: completed {self._iterations} iterations --------")
        seconds = time.monotonic() - self._started
        say_platform(f"--------END TRAINING: completed epoch {self._epochs} in time {seconds} --------")

    def _log_batch(self, epoch: int) -> None:
        meter, last = self._meter, self._meter.batches == self.plan.batches_per_epoch
        # Recorded: the server's counter runs 2, 3, ..., n and is 0 for the last batch of an epoch.
        counter = 0 if last else meter.batches + 1
        if self._hooks is None:
            print(default_block(self._iterations, counter, meter.recorded_loss, meter.accuracy), flush=True)
            return
        self._hooks.train_metrics(
            Values(
                meter.recorded_loss, meter.accuracy, counter, meter.metrics, self._iterations, epoch, self._workers
            )
        )

    def _report(self, epoch: int) -> None:
        self._reported = time.monotonic()
        speed = self._speed.add(self._reported, self._samples)
        self._metrics(self._steps, self._meter.known)
        left = self.plan.epoch_samples * self._epochs - self._samples
        self._progress(
            epoch=epoch + 1,
            epochs=self.plan.epochs,
            step=self._steps,
            steps=self.plan.steps,
            loss=self._meter.loss,
            accuracy=self._meter.known.get("accuracy"),
            samples_per_second=round(speed, 1) if speed else None,
            seconds_left=round(left / speed, 1) if speed else None,
            step_seconds=round(self.plan.step_samples / speed, 4) if speed else None,
        )
