"""The order of samples: samplers, unshuffled order, drop_last; and trainings without a test set."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ordinary import SAMPLES, Case, network, plain_data, train
from resident import Resident
from small import NewLogger, fabric
from torch import nn
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from local_backend.elastic.data.data_sets import SampledOrder
from local_backend.elastic.errors import EngineError
from local_backend.elastic.state.fingerprints import digest

DATA = list(range(100, 130))


class Grouped(Sampler):
    """Keeps samples of similar length together, with the groups in random order."""

    def __init__(self, data, group):
        self.data, self.group, self.epoch = data, group, None

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        rng = random.Random(self.epoch)
        groups = [list(range(i, min(i + self.group, len(self.data)))) for i in range(0, len(self.data), self.group)]
        rng.shuffle(groups)
        return iter([i for group in groups for i in group])

    def __len__(self):
        return len(self.data)


class InPlace(Sampler):
    """Shuffles its own list repeatedly: the order of an epoch depends on the epochs before."""

    def __init__(self, count):
        self.order = list(range(count))

    def __iter__(self):
        random.shuffle(self.order)
        return iter(self.order)


class Caching(Grouped):
    """Computes its groups at the first iteration."""

    def __iter__(self):
        self.cached = getattr(self, "cached", None) or list(super().__iter__())
        return iter(self.cached)


class Mixed(Sampler):
    """Holds another sampler and its own generators."""

    def __init__(self, count):
        self.inner = RandomSampler(range(count), generator=torch.Generator())
        self.noise = np.random.default_rng()

    def __iter__(self):
        return iter([i for i in self.inner if self.noise.random() < 2] + [int(self.noise.integers(3))])


SAMPLERS = {
    "weighted": lambda: WeightedRandomSampler([1.0, *[2.0] * 29], 40),
    "weighted by a generator": lambda: WeightedRandomSampler([1.0] * 30, 12, generator=torch.Generator()),
    "subset": lambda: SubsetRandomSampler([3, 4, 5, 9]),
    "sequential": lambda: SequentialSampler(DATA),
    "random": lambda: RandomSampler(DATA, replacement=True, num_samples=17),
    "grouped": lambda: Grouped(DATA, 4),
    "in place": lambda: InPlace(30),
    "caching": lambda: Caching(DATA, 4),
    "mixed": lambda: Mixed(30),
    "a list": lambda: [5, 5, 1],
    "an array": lambda: np.array([2, 7]),
    "a tensor": lambda: torch.tensor([2, 7]),
    "a function": lambda: lambda data: Grouped(data, 7),
    "a function with random numbers": lambda: lambda data: np.random.permutation(len(data))[:9].tolist(),
}


@pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS.keys())
@settings(max_examples=5, deadline=None)
@given(epochs=st.lists(st.integers(0, 6), min_size=1, max_size=5), seed=st.integers(0, 2**63))
def test_the_order_of_an_epoch_does_not_depend_on_earlier_requests(make, epochs, seed):
    other = SampledOrder(make(), DATA, seed)
    expected = [other.of(epoch).tolist() for epoch in range(7)]
    torch.manual_seed(0)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    order = SampledOrder(make(), DATA, seed)
    for epoch in epochs:
        assert order.of(epoch).tolist() == expected[epoch]
    assert {len(indices) for indices in expected} == {order.samples}
    assert before == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())


@pytest.mark.parametrize("name", ["weighted", "subset", "grouped", "in place", "random", "mixed"])
def test_orders_differ_between_epochs(name):
    order = SampledOrder(SAMPLERS[name](), DATA, 3)
    assert order.of(0).tolist() != order.of(1).tolist()


def test_the_scripts_sampler_stays_unchanged():
    sampler = InPlace(30)
    SampledOrder(sampler, DATA, 3).of(4)
    assert sampler.order == list(range(30))


class Changing(Sampler):
    """Returns more samples in later epochs."""

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(range(3 + self.epoch))


class ChangingLater(Grouped):
    def __iter__(self):
        if self.epoch == 2:
            self.group = 2
        return super().__iter__()


class Learned(Sampler):
    def __init__(self):
        self.model = nn.Linear(1, 1)

    def __iter__(self):
        return iter([0])


@pytest.mark.parametrize(
    ("sampler", "words"),
    [
        (DistributedSampler(DATA, 2, 0), "must not be a DistributedSampler: the engine divides"),
        (BatchSampler(SequentialSampler(DATA), 4, False), "must not be a BatchSampler"),
        ([[0, 1], [2, 3]], r"indices of single samples, which are whole numbers; it returned \[0, 1\]: .* batch_size"),
        ([0.5], "whole numbers; it returned 0.5"),
        ([0, 30], "from 0 to 29, because the training set has 30 samples; it returned 30"),
        ([-1], "it returned -1"),
        ([True], "it returned True"),
        ([], "returns no samples"),
        (iter([1, 2]), "list_iterator returns its items only once"),
        (lambda data: 3, "it returned a int"),
        (Learned(), "holds a model or an optimizer"),
        (Changing(), "returns 4 samples in epoch 1, but 3 in epoch 0"),
        (ChangingLater(DATA, 4), "changes its attributes while it is iterated in epoch 2, but not in epoch 0"),
    ],
)
def test_unusable_samplers_are_refused(sampler, words):
    with pytest.raises(EngineError, match=words):
        order = SampledOrder(sampler, DATA, 0)
        for epoch in range(4):
            order.of(epoch)


def test_the_order_of_an_epoch_is_that_of_the_sampler_at_its_beginning():
    sampler, after = Grouped(DATA, 4), Grouped(DATA, 2)
    order = SampledOrder(sampler, DATA, 0)
    before = order.of(1)
    assert not order.begin(1)
    sampler.group = 2
    assert order.of(1).tolist() == before.tolist()
    assert order.begin(1)
    expected = SampledOrder(after, DATA, 0)
    assert [order.of(epoch).tolist() for epoch in (1, 2)] == [expected.of(epoch).tolist() for epoch in (1, 2)]


def test_an_order_that_was_returned_long_ago_counts_as_changed():
    sampler = Grouped(DATA, 4)
    order = SampledOrder(sampler, DATA, 0)
    for epoch in range(1, 9):
        order.of(epoch)
    sampler.group = 2
    for epoch in range(8, 1, -1):
        order.of(epoch)
    assert order.begin(1) and order.begin(2) and not order.begin(9)


def test_the_order_of_an_epoch_follows_a_data_set_that_the_sampler_reads():
    class Reading(Sampler):
        def __init__(self, data):
            self.data = data

        def __iter__(self):
            return iter([i for i in range(4) if self.data[i] != self.data.skipped] + [0])

    class Changing(Dataset):
        skipped = 1

        def __len__(self):
            return 4

        def __getitem__(self, i):
            return i

    data = Changing()
    order = SampledOrder(Reading(data), data, 0)
    assert order.of(1).tolist() == [0, 2, 3, 0]
    data.skipped = 2
    assert order.begin(1) and order.of(1).tolist() == [0, 1, 3, 0]


def test_a_worker_that_joins_uses_the_order_of_the_others():
    sampler = Grouped(DATA, 4)
    order = SampledOrder(sampler, DATA, 0)
    order.of(3)
    assert order.copy(3, np.arange(30)) and not order.copy(3, np.arange(30))
    sampler.group = 2
    for epoch in (3, 4, 5, 6, 3):
        assert (order.of(epoch).tolist() == list(range(30))) == (epoch == 3)


def test_a_sampler_that_keeps_state_must_not_be_changed_by_training():
    sampler = InPlace(30)
    order = SampledOrder(sampler, DATA, 0)
    order.of(1)
    sampler.order.reverse()
    with pytest.raises(EngineError, match="changes while it is iterated, and was also changed during training"):
        order.of(2)


# --- digests

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
)


def written(value):
    """Return the value as text, independent of the order of dicts."""
    if isinstance(value, dict):
        return f"dict {sorted((repr(key), written(item)) for key, item in value.items())}"
    return f"list {[written(item) for item in value]}" if isinstance(value, list) else repr(value)


@given(values, values)
def test_digests_are_equal_exactly_for_equal_values(a, b):
    assert digest(a) == digest(a)
    assert (digest(a) == digest(b)) == (written(a) == written(b))


class Holder:
    def __init__(self, value):
        self.value, self.itself = value, self


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float64)),
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        (torch.tensor([1.0]), torch.tensor([1.0 + 2**-23])),
        (torch.tensor(1), np.array(1)),
        (np.array([1, 2]), np.array([1, 3])),
        (np.array(["a", None], dtype=object), np.array(["b", None], dtype=object)),
        ({"a": [torch.ones(1)]}, {"a": [torch.zeros(1)]}),
        ([[1], 2], [[1, 2]]),
        (1, True),
        ("1", 1),
        (Holder(1), Holder(2)),
    ],
)
def test_different_values_have_different_digests(a, b):
    assert digest(a) != digest(b)


def test_digests_do_not_depend_on_order_of_hashes_or_memory():
    assert digest({"a": 1, "b": {2, 3}}) == digest({"b": {3, 2}, "a": 1})
    assert digest(Holder([torch.ones(2)])) == digest(Holder([torch.ones(2)]))
    assert digest(torch.arange(6).reshape(2, 3).t()) == digest(torch.tensor([[0, 3], [1, 4], [2, 5]]))
    assert digest(torch.ones(2, dtype=torch.bfloat16)) == digest(torch.ones(2, dtype=torch.bfloat16))


# --- trainings


class Numbered(Dataset):
    """A data set whose samples are their own numbers."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return index


class Collected:
    """A collate function that records the trained samples; the model gets ones."""

    def __init__(self):
        self.seen = []

    def __call__(self, indices):
        self.seen.append(indices)
        return torch.ones(len(indices), 4), torch.zeros(len(indices), dtype=torch.long)


def trained(batch, engines, **options):
    """Return the samples of each batch of a training of two epochs without a test set."""
    collect = Collected()
    model, _ = fabric(fn_batch_collate=collect, driver_logger=object())
    model._job.datasets_function = lambda: (Numbered(), None)
    model.train(2, batch, engines, local_state=["seen"], **options)
    return collect.seen


@pytest.mark.usefixtures("result_dir")
def test_an_unshuffled_order_is_the_order_of_the_training_set():
    epoch = [list(range(i, min(i + 4, SAMPLES))) for i in range(0, SAMPLES, 4)]
    assert trained(4, 2, shuffle=False) == epoch * 2


@pytest.mark.usefixtures("result_dir")
def test_drop_last_leaves_out_the_last_step_of_each_epoch():
    seen = trained(4, 2, shuffle=False, drop_last=True)
    assert seen == [list(range(i, i + 4)) for i in range(0, 16, 4)] * 2


@pytest.mark.usefixtures("result_dir")
def test_a_sampler_decides_order_and_number():
    assert trained(4, 1, sampler=[3, 3, 1, 0, 2]) == [[3, 3, 1, 0], [2]] * 2
    assert trained(4, 1, sampler=np.array([3, 3, 1, 0, 2])) == [[3, 3, 1, 0], [2]] * 2
    assert trained(4, 1, sampler=lambda data: range(len(data) - 6, 0, -6)) == [[16, 10, 4]] * 2


@pytest.mark.usefixtures("result_dir")
@pytest.mark.parametrize(
    ("function", "options", "words"),
    [
        (plain_data, {"drop_last": True}, "leaves no steps in an epoch: an epoch has 22 samples, and a step needs 30"),
        (plain_data, {"samples_per_epoch": 4}, "samples_per_epoch is for iterable training sets"),
        (lambda: (plain_data()[0], None), {"fn_test": lambda *_: 0.0}, "fn_test is given, but .* no test set"),
        (lambda: None, {}, "training set must be .*, not a NoneType"),
    ],
)
def test_unusable_data_is_refused_before_training(function, options, words):
    model, _ = fabric(driver_logger=object(), **options)
    model._job.datasets_function = function
    with pytest.raises(RuntimeError, match=words):
        model.train(1, 30, 1)


@pytest.mark.usefixtures("result_dir")
@pytest.mark.parametrize("function", [lambda: plain_data()[0], lambda: [plain_data()[0], None]])
def test_a_training_without_a_test_set_is_not_validated(function):
    logger, reference = NewLogger(), NewLogger()

    def network_on(datasets, told):
        torch.manual_seed(3)
        case = Case(network(), None)
        case.optimizer = torch.optim.SGD(case.model.parameters(), lr=0.1)
        model, _ = fabric(driver_logger=told)
        model._job.model, model._job.optimizer, model._job.datasets_function = case.model, case.optimizer, datasets
        model.train(2, 4, 2)

    network_on(function, logger)
    network_on(plain_data, reference)
    assert logger.train == reference.train
    assert logger.test == []
    assert reference.test


def weighted_without_the_last_step():
    model = network()
    weights = [1.0 + i % 3 for i in range(SAMPLES)]
    return Case(
        model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), datasets=lambda: plain_data()[0],
        extras={"sampler": WeightedRandomSampler(weights, 30), "drop_last": True},
    )


def in_place():
    model = network()
    return Case(model, torch.optim.SGD(model.parameters(), lr=0.1), extras={"sampler": lambda data: InPlace(len(data))})


@pytest.mark.integration
@pytest.mark.parametrize("build", [weighted_without_the_last_step, in_place])
def test_disturbed_workers_give_the_bits_of_a_single_process(tmp_path, monkeypatch, build):
    monkeypatch.setenv("RESULT_DIR", str(tmp_path / "alone"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (tmp_path / "now").touch()
    expected = train(build, str(tmp_path / "now"))
    results = []
    training = Resident(tmp_path, 1, lambda: results.append(train(build, str(tmp_path / "result" / "hurry"))))
    training.begin()
    try:
        training.wait_for_step(2)
        training.resize(3)
        training.wait_for_step(training.status["step"] + 6)
        training.kill(2)
        training.wait(lambda: training.status.get("deaths") == 1)
        training.finish()
    finally:
        training.abort()
    assert results == [expected]
