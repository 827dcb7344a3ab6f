"""The data sets of a training as a worker has them, and the order in which an epoch takes their samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from local_backend.elastic.data import load_datasets
from local_backend.elastic.errors import EngineError
from local_backend.elastic.job import Job
from local_backend.elastic.plan import Plan, batches
from local_backend.elastic.samplers import SampledOrder


class DataSets:
    """What `datasets_function` returned, checked against the options of the training."""

    def __init__(self, job: Job, seed: int) -> None:
        """Run `datasets_function`. Raises what it raises, and EngineError for data that cannot be trained on."""
        recipe = job.recipe
        #: The training set; the test set, empty when there is none.
        self.train, test = load_datasets(job.datasets_function)
        self.test: Any = [] if test is None else test
        if test is None and job.fn_test is not None:
            raise EngineError(
                "fn_test is given, but datasets_function returned no test set: return (training set, test set), or "
                "leave fn_test out"
            )
        if recipe.samples_per_epoch is not None:
            raise EngineError(
                f"samples_per_epoch is for iterable training sets; this training set has {len(self.train)} samples: "
                "leave it out, or choose the samples of an epoch by sampler="
            )
        self._sampled = None if recipe.sampler is None else SampledOrder(recipe.sampler, self.train, seed)
        self._shuffle = recipe.shuffle
        #: Validation batches, of as many samples as those of training; one with a test function.
        self.test_batches = len(list(batches(len(self.test), job.batch)))
        if job.fn_test is not None:
            self.test_batches = min(1, self.test_batches)

    @property
    def samples(self) -> int:
        """Samples of an epoch."""
        return len(self.train) if self._sampled is None else self._sampled.samples

    def plan(self, batch: int, step_samples: int, epochs: int, seed: int, multiple: int) -> Plan:
        """Return the plan of the training. Raises EngineError when no step would be left."""
        plan = Plan(self.samples, batch, step_samples, epochs, seed, self._shuffle, multiple)
        if plan.steps == 0:
            raise EngineError(
                f"drop_last=True leaves no step of an epoch: an epoch has {plan.samples} samples and a step "
                f"{plan.multiple}; use drop_last=False, or a smaller batch_size or engines_number"
            )
        return plan

    def order_of(self, plan: Plan) -> Callable[[int], Sequence[int] | np.ndarray]:
        """Return a function from an epoch to the indices of its samples in their order."""
        return plan.order if self._sampled is None else self._sampled.of
