"""The work of a worker between two epochs: files, validation, and steps that depend on the values of the epoch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from local_backend.elastic import faults
from local_backend.elastic.data.loading import VALIDATION, Stream, keys_of, to_device
from local_backend.elastic.hub.events import BatchResult
from local_backend.elastic.hub.watching import append_history
from local_backend.elastic.position import Position
from local_backend.elastic.script.calling import split_batch
from local_backend.elastic.script.hooks import takes_logs
from local_backend.elastic.script.job import TrainingJob
from local_backend.elastic.script.schedules import Schedules
from local_backend.elastic.state import artifacts, resume
from local_backend.elastic.state.replica import Replica
from local_backend.elastic.worker.journal import WorkerLog
from local_backend.elastic.worker.trainer import Trainer


class EpochEnd:
    """The tasks that the hub gives to a worker at an epoch boundary."""

    def __init__(
        self, job: TrainingJob, trainer: Trainer, tests: Stream, replica: Replica, journal: WorkerLog, *,
        describe: Callable[[str], None], generators: str,
    ) -> None:
        """`describe`: writes the manifest of the checkpoint with the given file name. `generators`: see Terms."""
        self._job = job
        self._trainer = trainer
        self._tests = tests
        self._replica = replica
        self._journal = journal
        self._describe = describe
        self._generators = generators
        self._schedules = Schedules(job)

    def save(self, epoch: int, name: str) -> None:
        """Write the files of an epoch (counted from 1) as model_epoch_<name>. Raises OSError."""
        job = self._job
        self._journal.say(f"save model under: {artifacts.train_dir()}")
        artifacts.save_checkpoint(job, name)
        self._describe(f"model_epoch_{name}.pth")
        self._journal.say(f"save models for epoch {epoch} " if name != "best" else f"save best model, epoch {epoch} ")
        if name == "final" and job.save_to_onnx:
            trouble = artifacts.export_onnx(job.model, self._example())
            if trouble:
                print(f"WARNING: {trouble}", file=sys.stderr, flush=True)

    def save_state(self, names: list[str], position: Position) -> None:
        """Write the training state beside the checkpoints with these names, for `resume_from`. Raises OSError."""
        checkpoints = [artifacts.train_dir() / f"model_epoch_{name}.pth" for name in names]
        resume.write_states(
            self._job, self._replica, self._trainer.plan, checkpoints, position=position, generators=self._generators
        )

    def save_artifacts(self, callbacks: Callable[..., None], epoch: int) -> None:
        """Let callbacks save the user's artifacts, after the worker that should have saved them has died.

        The callbacks have run for this epoch already, so the changes that they make to the state are undone.
        """
        before = self._replica.copy(self._replica.capture())
        self._trainer.evaluation_mode()
        callbacks(epoch, "on_epoch_end", epoch, save_model=True, logs=self._logs())
        self._replica.restore(before)

    def close(
        self, callbacks: Callable[..., None], epoch: int, values: dict[str, float], monitor: str, saves: bool
    ) -> None:
        """Update history and schedulers and run hooks with the values of an epoch (counted from 0). All members do the
        same. `saves`: whether this worker's callbacks save the user's artifacts."""
        carried = self._job.carried
        carried.told[epoch:] = [*([{}] * (epoch - len(carried.told))), dict(values)]
        rates = {f"lr_{name}" if name else "lr": rate for name, rate in carried.rates.items()}
        append_history(carried.history, epoch, {**values, **rates})
        callbacks(
            epoch, "on_epoch_end", epoch, save_model=saves, logs=self._logs(),
            leave_out=lambda callback: not takes_logs(callback),
        )
        callbacks(epoch, "on_validation_end", epoch, self._logs())
        self._schedules.after_epoch(values, monitor)

    def _logs(self) -> dict[str, float]:
        """Return the newest values of the history."""
        return {name: series[-1] for name, series in self._job.carried.history.items()}

    def test(self, epoch: int, first: int, last: int, workers: int) -> list[BatchResult]:
        """Validate batches `first` to `last` (exclusive) of the test set."""
        faults.at("validating")
        results = self._trainer.test(self._tests, first, last)
        for result in results:
            self._journal.tested(result, epoch, workers)
        return results

    def _example(self) -> Any:
        """Return the inputs of a batch of one training sample."""
        samples = Stream(self._trainer.dataset, self._trainer.plan.seed, self._job.fn_batch_collate)
        samples.plan(iter([("example", keys_of(VALIDATION, [0]))]))
        return to_device(split_batch(samples.take("example"))[0], self._trainer.device)
