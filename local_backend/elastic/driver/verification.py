"""The attributes `verify=N` and `verify_only=N`: compute the first N steps with two numbers of workers, and compare.

First a *rehearsal* computes these steps, and its state is discarded. It has one worker if the job has several slots,
else two workers on the only slot. Then the training begins as usual. Step by step, the driver compares the reports of
its workers with the rehearsal: the results of all batches, and in exact mode fingerprints of the whole state. A
difference ends the job. With `verify_only=N` the program ends after these steps.

The rehearsal runs the script's data sets, model and callbacks, but saves nothing, logs nothing and keeps no snapshots.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from local_backend.elastic.driver.hub_server import Observed
from local_backend.elastic.driver.launcher import Allocation, OnAllocation, OnExit, WorkerLauncher
from local_backend.elastic.driver.reporting import Listeners, Reporter
from local_backend.elastic.errors import EngineError
from local_backend.elastic.hub.events import Action, BatchResult, Begin, Commit, Send, Stopped, Validated
from local_backend.elastic.plan import StepPlan
from local_backend.elastic.state import manifest
from local_backend.elastic.state.artifacts import train_dir
from local_backend.elastic.worker.agreement import StateTable, first_difference

#: Largest relative difference of two losses that counts as rounding, in fast mode.
ROUNDING = 1e-3
#: Likely cause of a difference between two runs, for messages.
CAUSE = (
    "the result depends on the worker that computes a batch, or changes between runs; check attributes that forward "
    "or the step function changes, the time, files, and unseeded random numbers"
)
#: Suffix of the slot's name for the second of two workers that share a slot.
_AGAIN = " (second worker)"


class RehearsalFinished(Exception):
    """All steps to compare have been computed."""


@dataclass
class Rehearsal:
    """The first steps of a training as the driver received them. Raises Finished when all are complete."""

    wanted: int
    tables: dict[int, StateTable] = field(default_factory=dict)
    results: dict[int, tuple[BatchResult, ...]] = field(default_factory=dict)
    #: Numbers of members that computed the steps.
    workers: set[int] = field(default_factory=set)
    #: Number of steps to compare. The last step of a training is left out, because callbacks would save its result.
    steps: int = 0
    _steps_per_epoch: int = 1
    _members: int = 0

    def heard(self, action: Action, members: int) -> None:
        """Process an action of the hub. `members`: the present number of members."""
        self._members = members
        if isinstance(action, Begin):
            self._steps_per_epoch = action.plan.steps_per_epoch
            self.steps = min(self.wanted, action.plan.steps - 1, self.most)
            self.finish()
        elif isinstance(action, Commit):
            step = action.epoch * self._steps_per_epoch + action.step
            if step < self.steps:
                self.commit(step, action.results)
                self.finish()
        elif isinstance(action, Send) and action.message["op"] in ("save", "artifacts"):
            self.saves()

    def observed(self, event: Observed) -> None:
        """Process the state of a member after a step. Every member sends its state."""
        if event.step < self.steps:
            self.workers.add(event.members)
            self.compare(event.step, StateTable.from_bytes(event.table))
            self.finish()

    def compare(self, step: int, table: StateTable) -> None:
        """Record the state after a step."""
        self.tables[step] = table

    def commit(self, step: int, results: tuple[BatchResult, ...]) -> None:
        """Record the results of a step."""
        self.results[step] = results

    def saves(self) -> None:
        """Raise Finished before anything is saved, because the training stops early."""
        self.steps = min(len(self.results), len(self.tables))
        raise RehearsalFinished

    @property
    def ends_early(self) -> bool:
        """Whether the training ends after these steps. Then its workers, which may already be further, save nothing."""
        return True

    @property
    def most(self) -> int:
        """Most steps that can be compared."""
        return self.wanted

    @property
    def complete(self) -> bool:
        """Whether the results and states of all steps are complete."""
        return min(len(self.results), len(self.tables)) >= self.steps

    def finish(self) -> None:
        """Raise Finished when all steps are complete."""
        if self.complete:
            raise RehearsalFinished


@dataclass
class Check(Rehearsal):
    """The training itself, compared with a rehearsal. Raises EngineError if they differ."""

    rehearsed: Rehearsal = field(default_factory=lambda: Rehearsal(0))
    exact: bool = True
    #: Whether the training ends after the last compared step.
    only: bool = False
    say: Callable[[str], None] = print
    #: The outcome of the comparison, None before it is known.
    report: str | None = None
    held: bool = False
    _furthest: float = 0.0

    def compare(self, step: int, table: StateTable) -> None:
        self.tables[step] = table
        before = self.rehearsed.tables.get(step)
        if not self.exact or before is None:
            return
        difference = first_difference([before, table])
        if difference is not None:
            raise self._failure(f"after step {step + 1} {difference.what}")

    def commit(self, step: int, results: tuple[BatchResult, ...]) -> None:
        self.results[step] = results
        for before, now in zip(self.rehearsed.results[step], results, strict=True):
            apart = _apart(before, now)
            self._furthest = max(self._furthest, apart)
            if apart > (0.0 if self.exact else ROUNDING):
                raise self._failure(
                    f"batch {now.number + 1} of step {step + 1} differs (loss {before.loss!r} and {now.loss!r}, "
                    f"{before.correct} and {now.correct} of {now.count} samples right)"
                )

    @property
    def ends_early(self) -> bool:
        return self.only

    @property
    def most(self) -> int:
        return self.rehearsed.steps

    def saves(self) -> None:
        """Do nothing: the training itself saves as usual."""

    def finish(self) -> None:
        if not self.complete or self.report is not None:
            return
        self.report = self._report()
        self.say(self.report)
        if self.only:
            raise RehearsalFinished

    def to_manifest(self) -> None:
        """Add the report to the manifest of the training, if there is one."""
        if self.report is None:
            self.report = f"not verified: the training ended after {len(self.results)} of {self.steps} steps"
            self.say(self.report)
        with suppress(OSError, ValueError):
            found = manifest.load(train_dir() / manifest.NAME)
            workers = [sorted(self.rehearsed.workers), sorted(self.workers)]
            verified = {"held": self.held, "steps": self.steps, "workers": workers, "report": self.report}
            manifest.save({**found, "verified": verified})

    def _report(self) -> str:
        if self.steps < 1:
            return "not verified: the training has only one step"
        here, there = self.rehearsed.workers, self.workers
        if here == there:
            return f"not verified: the first {self.steps} steps ran with {_workers(here)} both times"
        self.held = True
        if self.exact:
            return f"verified: the first {self.steps} steps gave the same bits with {_counts(here, there)} workers"
        return (
            f"verified: the losses of the first {self.steps} steps agree within rounding with {_counts(here, there)} "
            f"workers (largest relative difference {self._furthest:.1e})"
        )

    def _failure(self, what: str) -> EngineError:
        counts = _counts(self.rehearsed.workers, self.workers or {self._members})
        self.report = f"not verified: with {counts} workers {what}"
        self.say(self.report)
        return EngineError(f"verification failed: with {counts} workers {what}. Likely cause: {CAUSE}")


class OtherNumber:
    """The launcher of a rehearsal: the launcher of the job with another number of slots."""

    in_process = False

    def __init__(self, launcher: WorkerLauncher, workers: int) -> None:
        """`workers`: 1, or 2 on the same slot."""
        self._launcher = launcher
        self._workers = workers

    def allocation(self) -> Allocation:
        return self._of(self._launcher.allocation())

    def listen(self, on_exit: OnExit, on_allocation: OnAllocation) -> None:
        self._launcher.listen(on_exit, lambda found: on_allocation(self._of(found)))

    def start(self, worker: int, slot: str, address: str, key: str) -> None:
        self._launcher.start(worker, slot.removesuffix(_AGAIN), address, key)

    def kill(self, worker: int) -> None:
        self._launcher.kill(worker)

    def attend(self, serve: Callable[[], None]) -> None:
        self._launcher.attend(serve)

    def progress(self, **values: Any) -> None:
        """Do nothing: a rehearsal is not progress of the training."""

    def status(self, **values: Any) -> None:
        """Do nothing: only the history shows a rehearsal."""

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Do nothing: a rehearsal is not progress of the training."""

    def rested(self, epochs: int, stored: bool) -> None:
        """Do nothing: a rehearsal does not rest."""

    def history(self, text: str) -> None:
        self._launcher.history(f"verification: {text}")

    def _of(self, allocation: Allocation) -> Allocation:
        """Return the allocation of the rehearsal."""
        first = allocation.slots[:1]
        again = tuple(replace(slot, id=slot.id + _AGAIN) for slot in first if self._workers == 2)
        return replace(allocation, slots=first + again, max_workers=self._workers, rest=None)


class SilentReporter(Reporter):
    """A reporter that reports nothing."""

    @classmethod
    def of(cls, plan: StepPlan, committed: int, rows: list[tuple[BatchResult, ...]]) -> SilentReporter:
        """Return the reporter of a rehearsal. See `reporting.MakeReporter`."""
        return cls(None, Listeners(lambda **values: None, lambda step, values: None), plan, committed, rows)

    def begin(self) -> None:
        """Say nothing."""

    def resumed(self) -> None:
        """Say nothing."""

    def commit(self, action: Commit, workers: int) -> None:
        """Say nothing."""

    def show_progress(self, action: Commit) -> None:
        """Say nothing."""

    def validated(self, action: Validated) -> None:
        """Say nothing."""

    def stopped(self, action: Stopped) -> None:
        """Say nothing."""

    def last_progress(self) -> None:
        """Say nothing."""

    def end(self) -> None:
        """Say nothing."""


def other_number(launcher: WorkerLauncher, batches: int) -> tuple[int, str]:
    """Return (number of workers for a rehearsal, ""), or (0, the reason) when no rehearsal is possible.

    Args:
        batches: batches of a step.
    """
    slots = launcher.allocation().slots
    if launcher.in_process:
        return 0, "not verified: without a backend there is only one worker"
    if batches < 2:
        return 0, "not verified: a step has only one batch, so one worker computes it; set engines_number=2 or more"
    if len(slots) > 1:
        return 1, ""
    if any(slot.kind != "cpu" for slot in slots):
        return 0, "not verified: two workers cannot share a GPU; submit the job with 2 or more GPUs"
    return 2, ""


def _apart(first: BatchResult, second: BatchResult) -> float:
    """Return the difference of two results relative to the loss; infinite if rounding cannot explain it."""
    if first == second or (math.isnan(first.loss) and math.isnan(second.loss)):
        return 0.0
    if first.count != second.count or math.isnan(first.loss) or math.isnan(second.loss):
        return math.inf
    return abs(first.loss - second.loss) / max(abs(first.loss), abs(second.loss), 1e-12) or ROUNDING / 2


def _counts(here: set[int], there: set[int]) -> str:
    return f"{' or '.join(map(str, sorted(here)))} and {' or '.join(map(str, sorted(there)))}"


def _workers(counts: set[int]) -> str:
    number = " or ".join(map(str, sorted(counts)))
    return f"{number} worker{'' if counts == {1} else 's'}"
