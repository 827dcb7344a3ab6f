"""Base classes that training scripts derive from. They hold no state: subclasses may leave out super().__init__()."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def _does_nothing(function: F) -> F:
    """Mark a hook of a base class that need not be called."""
    function.does_nothing = True  # type: ignore[attr-defined]
    return function


class Callback:
    """Runs in every worker. Overwrite what you need.

    `params` holds the live `optimizer` and the number of `epochs`, `model` the live model; both are set before
    training begins. To change the learning rate, write to `params["optimizer"].param_groups`. To end training after
    the present epoch, set `self.model.stop_training = True`.
    """

    params: dict[str, Any]
    model: Any

    def on_train_begin(self) -> None:
        """Before the first epoch."""

    def on_train_end(self) -> None:
        """After the last epoch."""

    def on_epoch_begin(self, epoch: int) -> None:
        """Before each epoch, counted from 0."""

    def on_epoch_end(self, epoch: int, save_model: bool = False) -> None:
        """After each epoch, with the model in evaluation mode.

        `save_model` is true on exactly one worker, after the last epoch. A hook with the further argument `logs` is
        called once the values of the epoch are known, validation included; `logs` has them by name.
        """

    def on_validation_end(self, epoch: int, logs: dict[str, float]) -> None:
        """After each epoch, once the values of the epoch are known; `logs` has them by name."""

    @_does_nothing
    def on_step_begin(self, step: int) -> None:
        """Before each optimizer step, counted from 0 over the whole training."""

    @_does_nothing
    def on_step_end(self, step: int, logs: dict[str, float]) -> None:
        """After each optimizer step; `logs` has the values of the step by name."""


class LoggerCallback:
    """Replaces the built-in logger of the driver or of the workers.

    `log_train_metrics` and `log_test_metrics` may have either signature:
    `(loss, acc, completed_batch, worker)` or `(metrics, iteration, epoch, workers)`.
    """

    def on_train_begin(self) -> None:
        """Before training."""

    def on_train_end(self) -> None:
        """After training, before the job ends."""

    def log_train_metrics(self, *values: Any) -> None:
        """After every batch."""

    def log_test_metrics(self, *values: Any) -> None:
        """After every validation."""
