"""Values of batches and epochs as loggers show them."""

from __future__ import annotations

import time

from local_backend.elastic.hub.events import BatchResult


class Meter:
    """Sums over the present epoch, in canonical order: the same bits for every number of workers."""

    def __init__(self) -> None:
        self.samples = 0
        self.batches = 0
        self._loss_of_batches = 0.0
        self._loss_of_samples = 0.0
        self._correct, self._judged = 0, False
        self._metrics: dict[str, float] = {}
        #: Samples for which each metric is known: if steps have several phases, each phase has its own metrics.
        self._known: dict[str, int] = {}

    def add(self, result: BatchResult) -> None:
        self.samples += result.count
        self.batches += 1
        self._loss_of_batches += result.loss
        self._loss_of_samples += result.loss * result.count
        self._correct += result.correct or 0
        self._judged = self._judged or result.correct is not None
        for name, value in result.metrics.items():
            self._metrics[name] = self._metrics.get(name, 0.0) + value * result.count
            self._known[name] = self._known.get(name, 0) + result.count

    @property
    def recorded_loss(self) -> float:
        """The loss for older loggers, as recorded: the sum of the batches' mean losses over the number of samples."""
        return self._loss_of_batches / self.samples

    @property
    def loss(self) -> float:
        return self._loss_of_samples / self.samples

    @property
    def loss_of_batches(self) -> float:
        """The mean of the batches' mean losses, which workers show in validation."""
        return self._loss_of_batches / self.batches

    @property
    def accuracy(self) -> float:
        return self._correct / self.samples

    @property
    def metrics(self) -> dict[str, float]:
        """The means of the epoch so far over its samples; the accuracy is 0 if it is unknown, as recorded."""
        return {"loss": self.loss, "accuracy": self.accuracy, **self._own}

    @property
    def known(self) -> dict[str, float]:
        """The same without an unknown accuracy."""
        return {"loss": self.loss, **({"accuracy": self.accuracy} if self._judged else {}), **self._own}

    @property
    def _own(self) -> dict[str, float]:
        return {name: value / self._known[name] for name, value in self._metrics.items()}


def default_block(count: int, counter: int, loss: float, accuracy: float) -> str:
    """Return the built-in logger's four lines for a batch."""
    return (
        f"Timestamp {time.time_ns() // 1_000_000}, Iteration {count}\n"
        f"batches :{count} {loss}\n"
        f"Iteration {counter}: tag train_accuracy, simple_value {round(accuracy, 5)}\n"
        f"Iteration {counter}: tag train_loss, simple_value {round(loss, 5)}"
    )
