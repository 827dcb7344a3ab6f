"""The computing side of a worker: shards of a step, validation batches, and the user's functions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from local_backend.elastic.data import VALIDATION, Loader, count_correct, keys_of, seed_everything, to_device, unpack
from local_backend.elastic.errors import EngineError
from local_backend.elastic.events import BatchResult
from local_backend.elastic.group import Group
from local_backend.elastic.job import Job
from local_backend.elastic.plan import Plan, batches, derive_seed, split
from local_backend.elastic.reduce import Layout, new_fold, reduce


class ModelHandle:
    """What a user's step and test functions get as `model`: callable, and knows optimizer and loss function."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __call__(self, *inputs: Any, **keywords: Any) -> Any:
        return self._job.model(*inputs, **keywords)

    def get_optimizer(self) -> torch.optim.Optimizer:
        """The optimizer; the engine steps it, a step function only clears gradients with it."""
        return self._job.optimizer

    def get_loss_function(self) -> Any:
        """The loss function of the script."""
        return self._job.loss_function

    def __getattr__(self, name: str) -> Any:
        return getattr(self._job.model, name)


class Batches:
    """The train_loader or test_iter of a user's function: iterates over (inputs, labels) on the CPU."""

    def __init__(self, loader: Loader, batch: int, epoch: int) -> None:
        self.dataset = loader.dataset
        self.batch_size = batch
        self._loader = loader
        self._keys = [keys_of(epoch, part) for part in batches(len(self.dataset), batch)]

    def __iter__(self) -> Iterator[Any]:
        return self._loader.load(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


class Trainer:
    """Computes this worker's part of steps and validations, on one device."""

    def __init__(self, job: Job, plan: Plan, loader: Loader, device: torch.device) -> None:
        self.job = job
        self.plan = plan
        self.device = device
        self._loader = loader
        self._handle = ModelHandle(job)
        # A step function may look at all training data; it must not disturb the pass that feeds it.
        self._all = Batches(Loader(loader.dataset, plan.seed, job.fn_batch_collate), plan.batch, 0)
        self.relayout()

    def relayout(self) -> None:
        """Look at the model anew: callbacks may have frozen parameters."""
        self.layout = Layout(self.job.modules, self.job.optimizer)

    def steps(
        self, epoch: int, rank: int, members: int, group: Group | None
    ) -> Iterator[tuple[int, list[BatchResult]]]:
        """Trains an epoch; yields (step, results of this worker's shards) after each step has been applied.

        Raises GroupBroken; the model is then as after the last step yielded.
        """
        plan = self.plan
        ranges = split(plan.shards, members)
        first, last = ranges[rank]
        order = plan.order(epoch)
        mine = [range(first, min(last, plan.active_shards(step))) for step in range(plan.steps_per_epoch)]
        loaded = self._loader.load(
            [
                keys_of(epoch, plan.indices(epoch, step, shard, order))
                for step, shards in enumerate(mine)
                for shard in shards
            ]
        )
        for module in self.job.modules:
            module.train()
        for step, shards in enumerate(mine):
            active = plan.active_shards(step)
            fold = new_fold(active)
            computed = []
            for shard in shards:
                batch = next(loaded)
                seed_everything(plan.shard_seed(epoch, step, shard))
                self.layout.begin_shard()
                computed.append((shard, *self._forward_backward(batch)))
                fold.push((shard, 1), self.layout.collect(shard, plan.weight(step, shard)))
            total = reduce(fold.parts(), ranges, active, self.layout, group)
            # From here to the yield everything is local and cannot fail half-way for a reason outside this process.
            self.layout.apply(total, active)
            self.job.optimizer.step()
            yield step, self._results(step, computed)
        # Lets a loader process notice that this pass has ended.
        for _ in loaded:
            pass

    def test(self, loader: Loader, first: int, last: int) -> list[BatchResult]:
        """Validates batches `first` to `last` (exclusive) of the test set. With a test function there is one batch."""
        self._evaluation_mode()
        with torch.no_grad():
            if self.job.fn_test is not None:
                return [self._test_by_user(loader)]
            parts = list(batches(len(loader.dataset), self.plan.batch))[first:last]
            keys = [keys_of(VALIDATION, part) for part in parts]
            loaded = zip(range(first, last), parts, loader.load(keys), strict=True)
            return [self._test_batch(number, len(part), batch) for number, part, batch in loaded]

    def _evaluation_mode(self) -> None:
        for module in self.job.modules:
            module.eval()

    def _forward_backward(self, batch: Any) -> tuple[Any, Any, dict[str, Any]]:
        """(mean loss, samples right, metrics) of a batch; gradients of the mean loss are in the parameters."""
        job = self.job
        if job.fn_step_train is not None:
            result = job.fn_step_train(self._handle, unpack(batch), count_correct, self._all, job.fn_args)
            if not isinstance(result, (tuple, list)) or len(result) != 2:
                raise EngineError("fn_step_train must return the pair (acc, loss)")
            return result[1], result[0], {}
        inputs, labels = to_device(unpack(batch), self.device)
        outputs = job.model(inputs)
        loss = one_number(job.loss_function(outputs, labels))
        loss.backward()
        with torch.no_grad():
            return loss.detach(), count_correct(outputs, labels), self._metrics(outputs, labels)

    def _metrics(self, outputs: Any, labels: Any) -> dict[str, Any]:
        return {metric_name(metric): one_value(metric, outputs, labels) for metric in self.job.metrics}

    def _results(self, step: int, computed: Sequence[tuple[int, Any, Any, dict[str, Any]]]) -> list[BatchResult]:
        """Numbers of the shards' results; the one place where a GPU is waited for."""
        results = []
        for shard, loss, correct, metrics in computed:
            size = self.plan.size_of_shard(step, shard)
            values = {name: number(value) for name, value in metrics.items()}
            results.append(BatchResult(shard, size, number(loss), samples_right(correct, size), values))
        return results

    def _test_batch(self, number_: int, count: int, batch: Any) -> BatchResult:
        seed_everything(derive_seed(self.plan.seed, 3, number_))
        inputs, labels = to_device(unpack(batch), self.device)
        outputs = self.job.model(inputs)
        loss = number(one_number(self.job.loss_function(outputs, labels)))
        metrics = {name: number(value) for name, value in self._metrics(outputs, labels).items()}
        return BatchResult(number_, count, loss, int(count_correct(outputs, labels)), metrics)

    def _test_by_user(self, loader: Loader) -> BatchResult:
        assert self.job.fn_test is not None
        seed_everything(derive_seed(self.plan.seed, 3, 0))
        loss = self.job.fn_test(self._handle, Batches(loader, self.plan.batch, VALIDATION), self.job.fn_args)
        try:
            return BatchResult(0, 1, number(loss), None)
        except (TypeError, ValueError):
            raise EngineError(f"fn_test must return one number, the mean loss; it returned {loss!r}") from None


def one_number(loss: Any) -> torch.Tensor:
    """The loss, checked to be a single number. Raises EngineError with what it is instead."""
    if not isinstance(loss, torch.Tensor):
        raise EngineError(f"the loss function must return a tensor; it returned a {type(loss).__name__}")
    if loss.numel() != 1:
        raise EngineError(
            f"the loss function returned {loss.numel()} values (shape {tuple(loss.shape)}); it must return one number "
            "per batch: use reduction='mean' or call .mean() on it"
        )
    return loss.reshape(())


def one_value(metric: Any, outputs: Any, labels: Any) -> Any:
    """What a metric returns, checked to be a single number. Raises EngineError with what it is instead."""
    value = metric(outputs, labels)
    if getattr(value, "size", None) is not None and hasattr(value, "item"):
        items = value.numel() if isinstance(value, torch.Tensor) else value.size
        if items == 1:
            return value
    elif isinstance(value, (int, float)):
        return value
    raise EngineError(f"the metric {metric_name(metric)} must return one number per batch; it returned {value!r}")


def number(value: Any) -> float:
    """A Python float of a number or one-element tensor."""
    return float(value.item() if hasattr(value, "item") else value)


def samples_right(acc: Any, size: int) -> int | None:
    """How many of `size` samples a step function's `acc` says are right; None when it says nothing.

    A count, as `eva` returns it; or, if not of a whole-number type and between 0 and 1, a fraction.
    """
    value = acc.item() if hasattr(acc, "item") else acc
    if value is None or not math.isfinite(value):
        return None
    return round(value * size if isinstance(value, float) and 0 <= value <= 1 else value)


def metric_name(metric: Any) -> str:
    """Name of a metric in reports."""
    return getattr(metric, "__name__", None) or type(metric).__name__
