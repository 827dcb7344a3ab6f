"""Calls of the user's step and test functions: their arguments, and the numbers that they return."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from local_backend.elastic.data.loading import VALIDATION, Loader, count_correct, keys_of
from local_backend.elastic.data.streams import StreamedSamples
from local_backend.elastic.errors import EngineError
from local_backend.elastic.hub.events import BatchResult
from local_backend.elastic.plan import StepPlan, batches
from local_backend.elastic.script.calling import predicted
from local_backend.elastic.script.job import TrainingJob
from local_backend.elastic.script.whole import name_of

#: Largest relative error of an accuracy that a script computes, in any precision.
_INEXACT = 1e-3


class ModelHandle:
    """The argument `model` of a user's step and test functions: callable, with the optimizer and the loss function."""

    def __init__(self, job: TrainingJob) -> None:
        self._job = job

    def __call__(self, *inputs: Any, **keywords: Any) -> Any:
        return self._job.model(*inputs, **keywords)

    def get_optimizer(self) -> torch.optim.Optimizer:
        """Return the optimizer. The engine steps it; a step function only clears gradients with it."""
        return self._job.optimizer

    def get_loss_function(self) -> Any:
        """Return the loss function of the script."""
        return self._job.loss_function

    def __getattr__(self, name: str) -> Any:
        return getattr(self._job.model, name)


class Batches:
    """The argument train_loader or test_iter of a user's function: iterates over (inputs, labels) on the CPU."""

    def __init__(self, loader: Loader, batch: int, epoch: int) -> None:
        samples = loader.dataset
        self.dataset = samples.iterable if isinstance(samples, StreamedSamples) else samples
        self.batch_size = batch
        self._samples = len(samples)
        self._loader = loader
        self._epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        parts = batches(self._samples, self.batch_size)
        return self._loader.load(keys_of(self._epoch, part) for part in parts)

    def __len__(self) -> int:
        return math.ceil(self._samples / self.batch_size)


class UserFunctions:
    """The functions with which a script computes a step or a validation itself."""

    def __init__(self, job: TrainingJob, plan: StepPlan, dataset: Any) -> None:
        """`dataset`: the training data."""
        self._job, self._plan = job, plan
        self._handle = ModelHandle(job)
        # A step function may read all training data. Its reads must not disturb the stream of its batches.
        self._all = Batches(Loader(dataset, plan.seed, job.fn_batch_collate), plan.batch, 0)

    def step(self, shard: int, size: int, batch: Any) -> BatchResult:
        """Call the user's step function, which runs forward and backward."""
        job = self._job
        assert job.fn_step_train is not None
        #: (right answers, answers) of each call of `eva`; None if unknown.
        counts: list[tuple[torch.Tensor, int] | None] = []

        def eva(outputs: Any, labels: Any) -> torch.Tensor:
            right = count_correct(outputs, labels)
            # The user may change the returned tensor in place.
            counts.append(None if right is None else (right.clone(), len(predicted(outputs))))
            return torch.zeros((), dtype=torch.int64) if right is None else right

        result = job.fn_step_train(self._handle, batch, eva, self._all, job.fn_args)
        if not isinstance(result, (tuple, list)) or len(result) != 2:
            raise EngineError("fn_step_train must return the pair (acc, loss)")
        known = [(int(count[0]), count[1]) for count in counts if count is not None]
        counted, answers = (sum(part) for part in zip(*known, strict=True)) if known else (None, 0)
        right = samples_right(result[0], size, counted)
        if right is not None and right == counted and answers > size:
            # Several answers per sample, such as tokens: each counts as a fraction of its sample.
            right = round(right * size / answers)
        # The 0 that `eva` returns for an unknown number is not a number of right samples.
        unknown = right == 0 and counts and not known
        return BatchResult(shard, size, number(result[1]), None if unknown else right)

    def test(self, dataset: Any) -> BatchResult:
        """Call the user's test function, which computes the mean loss of the test set."""
        assert self._job.fn_test is not None
        loader = Loader(dataset, self._plan.seed, self._job.fn_batch_collate)
        loss = self._job.fn_test(self._handle, Batches(loader, self._plan.batch, VALIDATION), self._job.fn_args)
        try:
            return BatchResult(0, 1, number(loss), None)
        except (TypeError, ValueError):
            raise EngineError(f"fn_test must return one number, the mean loss; it returned {loss!r}") from None


def one_value(metric: Any, outputs: Any, labels: Any) -> Any:
    """Return the value of a metric. Raises EngineError with the value if it is not a single number."""
    value = metric(outputs, labels)
    if getattr(value, "size", None) is not None and hasattr(value, "item"):
        items = value.numel() if isinstance(value, torch.Tensor) else value.size
        if items == 1:
            return value
    elif isinstance(value, (int, float)):
        return value
    raise EngineError(f"the metric {name_of(metric)} must return one number per batch; it returned {value!r}")


def number(value: Any) -> float:
    """Return a number or one-element tensor as a Python float."""
    return float(value.item() if hasattr(value, "item") else value)


def samples_right(acc: Any, size: int, counted: int | None = None) -> int | None:
    """Return how many of `size` samples are right according to a step function's `acc`; None if it does not say.

    An `acc` of a whole-number type is a count, as `eva` returns it. A float up to 1 is a fraction. A float up to 100 is
    a percentage if it has a fractional part, or exceeds `size`, or equals 100. Any other whole float is a count.
    `counted` is the sum of the counts that `eva` returned in this step. If a float, read as a count, fraction or
    percentage, agrees with `counted`, the result is `counted`.
    """
    value = acc.item() if hasattr(acc, "item") else acc
    if value is None or not math.isfinite(value):
        return None
    if not isinstance(value, float):
        return round(value)
    readings = (value, value * size, value * size / 100)
    if counted is not None and any(math.isclose(reading, counted, rel_tol=_INEXACT) for reading in readings):
        return counted
    if 0 <= value <= 1 + _INEXACT:
        return min(size, round(value * size))
    # 100 is a percentage: exactly 100 right samples of more are rare, but a trained model often gets all samples right.
    if 1 < value <= 100 * (1 + _INEXACT) and (value > size or not value.is_integer() or value == 100):
        return min(size, round(value * size / 100))
    return round(value) if value.is_integer() else None
