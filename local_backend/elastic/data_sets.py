"""The data sets of a training in one worker, and the order of the samples in an epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from local_backend.elastic.data import load_datasets
from local_backend.elastic.errors import EngineError
from local_backend.elastic.job import Job
from local_backend.elastic.plan import Plan, batches
from local_backend.elastic.samplers import SampledOrder
from local_backend.elastic.seeding import watch
from local_backend.elastic.streams import StreamedSamples, is_stream
from local_backend.elastic.whole import is_whole_set


class DataSets:
    """The data sets that `datasets_function` returned, checked against the options of the training."""

    def __init__(self, job: Job, seed: int, counted: int | None, say: Callable[[str], None]) -> None:
        """Run `datasets_function`. `counted`: number of training samples, if another worker has counted them. `say`
        gets messages about work that takes long.

        Raises the exceptions of `datasets_function`, and EngineError for data that cannot be trained on."""
        recipe = job.recipe
        train, test = load_datasets(job.datasets_function)
        watch({"the training set": train, "the test set": test, "fn_batch_collate": job.fn_batch_collate}, job.sources)
        if test is None and job.fn_test is not None:
            raise EngineError(
                "fn_test is given, but datasets_function returned no test set: return (training set, test set), or "
                "remove fn_test"
            )
        self._streamed = is_stream(train)
        _check_options(job, train, self._streamed)
        #: The training set.
        self.train: Any = train
        if self._streamed:
            self.train = StreamedSamples(
                "training", train, seed, samples=recipe.samples_per_epoch, counted=counted, say=say
            )
        if len(self.train) == 0:
            raise EngineError("the training set returned by datasets_function has no samples")
        #: The test set, empty when there is none.
        self.test: Any = [] if test is None else test
        if is_stream(test):
            self.test = StreamedSamples("test", test, seed, say=say)
        self._sampled = None if recipe.sampler is None else SampledOrder(recipe.sampler, self.train, seed)
        self._shuffle = recipe.shuffle and not self._streamed
        #: Number of validation batches, which have the size of training batches. At most 1 with a test function, or
        #: with a metric that needs the whole test set.
        self.test_batches = len(list(batches(len(self.test), job.batch)))
        if job.fn_test is not None or any(is_whole_set(metric) for metric in job.metrics):
            self.test_batches = min(1, self.test_batches)

    @property
    def samples(self) -> int:
        """Number of samples in an epoch."""
        return len(self.train) if self._sampled is None else self._sampled.samples

    def plan(self, batch: int, step_samples: int, epochs: int, seed: int, *, multiple: int, phases: int) -> Plan:
        """Return the plan of the training. Raises EngineError if an epoch has no step."""
        plan = Plan(self.samples, batch, step_samples, epochs, seed, self._shuffle, multiple, phases)
        if plan.steps == 0:
            raise EngineError(
                f"drop_last=True leaves no steps in an epoch: an epoch has {plan.samples} samples, and a step needs "
                f"{plan.multiple}; use drop_last=False, or a smaller batch_size or engines_number"
            )
        return plan

    def sampled(self, epoch: int) -> np.ndarray | None:
        """Return the sample indices that the sampler gives for an epoch, or None without a sampler."""
        return None if self._sampled is None else self._sampled.of(epoch)

    def order_of(self, plan: Plan) -> Callable[[int], Sequence[int] | np.ndarray]:
        """Return a function that maps an epoch to its sample indices in order."""
        return plan.order if self._sampled is None else self._sampled.of


def _check_options(job: Job, train: Any, streamed: bool) -> None:
    """Raise EngineError for an option that does not fit the kind of the training set."""
    if streamed and job.recipe.sampler is not None:
        raise EngineError(
            "a sampler needs a training set with __getitem__ and __len__; this training set is iterable "
            f"({type(train).__name__}) and determines the order of its samples itself"
        )
    if not streamed and job.recipe.samples_per_epoch is not None:
        raise EngineError(
            f"samples_per_epoch is for iterable training sets; this training set has {len(train)} samples: remove "
            "samples_per_epoch, or select the samples of an epoch with sampler="
        )
