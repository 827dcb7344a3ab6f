"""Base classes for training scripts. The classes hold no state, so subclasses may leave out super().__init__()."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def _does_nothing(function: F) -> F:
    """Mark a hook of a base class. The engine does not call marked hooks."""
    function.does_nothing = True  # type: ignore[attr-defined]
    return function


class Callback:
    """Hooks that run in every worker. Override the hooks that you need.

    `params` holds the live `optimizer` and the number of `epochs`. `model` is the live model. The engine sets both
    before training begins. To change the learning rate, write to `params["optimizer"].param_groups`. To end training
    after the current epoch, set `self.model.stop_training = True`.
    """

    params: dict[str, Any]
    model: Any

    def on_train_begin(self) -> None:
        """Run before the first epoch."""

    def on_train_end(self) -> None:
        """Run after the last epoch."""

    def on_epoch_begin(self, epoch: int) -> None:
        """Run before each epoch. Epochs count from 0."""

    def on_epoch_end(self, epoch: int, save_model: bool = False) -> None:
        """Run after each epoch, with the model in evaluation mode.

        `save_model` is true on exactly one worker, after the last epoch. A hook with the further argument `logs` runs
        once the values of the epoch are known, including validation. `logs` maps names to these values.
        """

    def on_validation_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Run after each epoch, once the values of the epoch are known. `logs` maps names to these values."""

    @_does_nothing
    def on_step_begin(self, step: int) -> None:
        """Run before each optimizer step. Steps count from 0 over the whole training."""

    @_does_nothing
    def on_step_end(self, step: int, logs: dict[str, float]) -> None:
        """Run after each optimizer step. `logs` maps names to the values of the step."""


class LoggerCallback:
    """A replacement for the built-in logger of the driver or of the workers.

    `log_train_metrics` and `log_test_metrics` may have either signature:
    `(loss, acc, completed_batch, worker)` or `(metrics, iteration, epoch, workers)`.
    """

    def on_train_begin(self) -> None:
        """Run before training."""

    def on_train_end(self) -> None:
        """Run after training, before the job ends."""

    def log_train_metrics(self, *values: Any) -> None:
        """Run after every batch."""

    def log_test_metrics(self, *values: Any) -> None:
        """Run after every validation."""
