"""The data sets of a training in one worker, and the order of the samples in an epoch.

Every member computes the whole order by itself, as the script's sampler gives it after the hooks `on_epoch_begin`. So
an order must follow from seed, epoch, and values that are equal in all members. All generators are seeded before the
sampler is iterated. A worker that joins copies the order of the present epoch from the others, because callbacks may
have changed the sampler since. A sampler that keeps state from epoch to epoch is iterated for all epochs from the
first.
"""

from __future__ import annotations

import copy
import operator
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import BatchSampler, Dataset, DistributedSampler, Sampler

from local_backend.elastic.data import seeding
from local_backend.elastic.data.loading import load_datasets
from local_backend.elastic.data.seeding import seed_everything, watch
from local_backend.elastic.data.streams import StreamedSamples, is_stream
from local_backend.elastic.errors import EngineError
from local_backend.elastic.plan import StepPlan, batches, derive_seed, order_seed
from local_backend.elastic.script.generators import find
from local_backend.elastic.script.job import TrainingJob
from local_backend.elastic.script.whole import is_whole_set
from local_backend.elastic.state.fingerprints import digest

#: Number of orders that are cached.
KEPT = 2


class SampledOrder:
    """The orders of epochs that a sampler gives. For one thread."""

    def __init__(self, sampler: Any, dataset: Any, seed: int) -> None:
        """`sampler`: a sampler, an iterable of indices, or a function of the training set that returns one of these.

        Raises EngineError when `sampler` is none of these, or when its items are not indices of `dataset`.
        """
        self._given = sampler
        self._dataset = dataset
        self._seed = seed
        self._orders: OrderedDict[int, np.ndarray] = OrderedDict()
        #: Epoch that has not begun → hashes of the orders that were returned for it.
        self._returned: dict[int, set[int]] = {}
        with seeding.kept():
            self._sampler = self._fresh()
            #: The sampler's own generators, which are seeded for each epoch.
            self._generators = find({"the sampler": self._sampler})
            self._shared = _shared(self._sampler, dataset)
            self._before = self._digest(sampler)
            #: Whether iteration changes the sampler. If so, the order of an epoch depends on the epochs before.
            first, self._stateful = self._list(0)
        self._next = 1
        #: The epoch that has begun last, and its order, which callbacks do not change anymore.
        self._begun, self._present = -1, first
        #: Number of samples of an epoch.
        self.samples = len(first)
        if not self.samples:
            raise EngineError(f"{self._name} returns no samples")
        self._keep(0, first)

    @property
    def _name(self) -> str:
        return f"the sampler ({type(self._sampler).__name__})"

    def of(self, epoch: int) -> np.ndarray:
        """Return the sample indices of an epoch in their order, int64.

        Raises EngineError when the number of samples differs from that of the first epoch, or when callbacks have
        changed a sampler that keeps state from epoch to epoch.
        """
        if epoch == self._begun:
            return self._present
        if epoch not in self._orders:
            with seeding.kept():
                self._keep(epoch, self._make(epoch))
        return self._orders[epoch]

    def begin(self, epoch: int) -> bool:
        """Compute the order of an epoch at its beginning. Return whether it differs from the order that was returned
        before, because hooks of callbacks have changed the sampler or data that it reads. Raises as `of` does."""
        if self._stateful:
            return self.copy(epoch, self.of(epoch))
        with seeding.kept():
            return self.copy(epoch, self._make(epoch))

    def copy(self, epoch: int, order: np.ndarray) -> bool:
        """Use this order for an epoch that has begun. Return whether another one was returned before."""
        before = {hash(self._present.tobytes())} if epoch == self._begun else self._returned.get(epoch, set())
        self._begun, self._present = epoch, order
        self._returned = {later: hashes for later, hashes in self._returned.items() if later > epoch}
        return bool(before - {hash(order.tobytes())})

    def _make(self, epoch: int) -> np.ndarray:
        now = self._digest(self._given)
        if now != self._before:
            if self._stateful:
                raise EngineError(
                    f"{self._name} changes while it is iterated, and was also changed during training, for example by "
                    "a callback, so a worker that joins would get a different order. Choose the order in its method "
                    "set_epoch(epoch), which the engine calls"
                )
            self._sampler, self._before = self._fresh(), now
            self._generators = find({"the sampler": self._sampler})
        if self._stateful:
            if epoch < self._next:
                self._sampler, self._next = self._fresh(), 0
                self._generators = find({"the sampler": self._sampler})
            for earlier in range(self._next, epoch):
                self._list(earlier)
        order, changed = self._list(epoch)
        self._next = epoch + 1
        if changed and not self._stateful:
            raise EngineError(
                f"{self._name} changes its attributes while it is iterated in epoch {epoch}, but not in epoch 0, so a "
                "worker that joins would get a different order. Choose the order in its method set_epoch(epoch), "
                "which the engine calls"
            )
        if len(order) != self.samples:
            raise EngineError(
                f"{self._name} returns {len(order)} samples in epoch {epoch}, but {self.samples} in epoch 0; the "
                "number must be the same in all epochs"
            )
        return order

    def _keep(self, epoch: int, order: np.ndarray) -> None:
        order.flags.writeable = False
        self._orders[epoch] = order
        self._returned.setdefault(epoch, set()).add(hash(order.tobytes()))
        while len(self._orders) > KEPT:
            self._orders.popitem(last=False)

    def _fresh(self) -> Any:
        """Return the sampler as the script gave it: a copy, or the result of the script's function."""
        given = self._given
        if hasattr(given, "__iter__") and not isinstance(given, type):
            _check_kind(given)
            shared = {id(item): item for item in _shared(given, self._dataset)}
            try:
                return copy.deepcopy(given, shared)
            except Exception as error:
                raise EngineError(
                    f"the sampler ({type(given).__name__}) cannot be copied ({error}); pass a function of the training "
                    "set that makes the sampler: sampler=lambda dataset: ..."
                ) from None
        seed_everything(derive_seed(self._seed, 5))
        made = given(self._dataset)
        if not hasattr(made, "__iter__"):
            raise EngineError(
                f"the function given as sampler must return a sampler or a list of indices; it returned a "
                f"{type(made).__name__}"
            )
        _check_kind(made)
        return made

    def _list(self, epoch: int) -> tuple[np.ndarray, bool]:
        """Return (the indices of an epoch, whether iteration has changed the sampler)."""
        seed = order_seed(self._seed, epoch)
        self._generators.seed(seed)
        for part in _parts(self._sampler):
            if callable(getattr(part, "set_epoch", None)):
                part.set_epoch(epoch)
        before = self._digest(self._sampler)
        seed_everything(seed)
        order = _indices(self._name, self._sampler, len(self._dataset))
        return order, self._digest(self._sampler) != before

    def _digest(self, sampler: Any) -> str:
        """Return a digest of all attributes except generators, which are seeded for each epoch."""
        parts = list(_parts(sampler)) if hasattr(sampler, "__iter__") and not isinstance(sampler, type) else []
        return digest([_attributes(part) for part in parts], [*self._shared, *parts])


def _attributes(sampler: Any) -> dict[str, Any]:
    return getattr(sampler, "__dict__", {})


def _parts(sampler: Any) -> Iterator[Any]:
    """Yield the sampler and the samplers that it holds, outermost first."""
    seen: list[Any] = []
    waiting = [sampler]
    while waiting:
        part = waiting.pop(0)
        if not any(part is other for other in seen):
            seen.append(part)
            yield part
            waiting += [value for value in _attributes(part).values() if isinstance(value, Sampler)]


def _shared(sampler: Any, dataset: Any) -> list[Any]:
    """Return the training set and the data sets that a sampler holds. These are never copied."""
    held = [value for part in _parts(sampler) for value in _attributes(part).values() if isinstance(value, Dataset)]
    return [dataset, *held]


def _check_kind(sampler: Any) -> None:
    """Raise EngineError for samplers that the engine does not support."""
    for part in _parts(sampler):
        if isinstance(part, DistributedSampler):
            raise EngineError(
                "sampler must not be a DistributedSampler: the engine divides the samples among the workers itself; "
                "remove sampler, or use shuffle=False for the order of the training set"
            )
        if any(isinstance(value, (nn.Module, torch.optim.Optimizer)) for value in _attributes(part).values()):
            raise EngineError(
                f"the sampler ({type(part).__name__}) holds a model or an optimizer: the order of an epoch must not "
                "depend on the training state; compute weights or an order before training begins"
            )
    if isinstance(sampler, BatchSampler):
        raise EngineError(
            "sampler must not be a BatchSampler: pass its inner sampler, and its batch size as batch_size of train()"
        )
    if isinstance(sampler, Iterator):
        raise EngineError(
            f"sampler must be iterable again in each epoch; a {type(sampler).__name__} returns its items only once: "
            "pass a list, a sampler, or a function of the training set that makes a sampler"
        )


def _indices(name: str, items: Iterable[Any], samples: int) -> np.ndarray:
    """Return the items as indices, int64. Raise EngineError for an item that is not an index below `samples`."""
    found = []
    for item in items:
        try:
            index = operator.index(item)
        except (TypeError, ValueError, RuntimeError):
            more = ": pass the sampler of single indices, and batch_size to train()" if isinstance(item, list) else ""
            raise EngineError(
                f"{name} must return indices of single samples, which are whole numbers; it returned {item!r}{more}"
            ) from None
        if isinstance(item, bool) or not 0 <= index < samples:
            raise EngineError(
                f"{name} must return indices from 0 to {samples - 1}, because the training set has {samples} samples; "
                f"it returned {item!r}"
            )
        found.append(index)
    return np.array(found, np.int64)


class DataSets:
    """The data sets that `datasets_function` returned, checked against the options of the training."""

    def __init__(self, job: TrainingJob, seed: int, counted: int | None, say: Callable[[str], None]) -> None:
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

    def plan(self, batch: int, step_samples: int, epochs: int, seed: int, *, multiple: int, phases: int) -> StepPlan:
        """Return the plan of the training. Raises EngineError if an epoch has no step."""
        plan = StepPlan(self.samples, batch, step_samples, epochs, seed, self._shuffle, multiple, phases)
        if plan.steps == 0:
            raise EngineError(
                f"drop_last=True leaves no steps in an epoch: an epoch has {plan.samples} samples, and a step needs "
                f"{plan.multiple}; use drop_last=False, or a smaller batch_size or engines_number"
            )
        return plan

    @property
    def sampled(self) -> SampledOrder | None:
        """The orders that the sampler gives, None without a sampler."""
        return self._sampled

    def order_of(self, plan: StepPlan) -> Callable[[int], Sequence[int] | np.ndarray]:
        """Return a function that maps an epoch to its sample indices in order."""
        return plan.order if self._sampled is None else self._sampled.of


def _check_options(job: TrainingJob, train: Any, streamed: bool) -> None:
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
