"""A sample that depends on the samples read before it ends the job; counters and caches of a data set do not."""

import itertools
import random
from collections import deque

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset

from local_backend.elastic.data.loading import Loader, Stream, keys_of
from local_backend.elastic.data.reads import EVERY, Reads
from local_backend.elastic.errors import EngineError

SIZE, LATE = 40, 30
READ = 0


class Data(Dataset):
    """Counts its reads. Subclasses may depend on them."""

    def __init__(self):
        self.reads = 0

    def __len__(self):
        return SIZE

    def __getitem__(self, i):
        self.reads += 1
        return float(i) + self.change(i)

    def change(self, i):
        return 0.0


class Late(Data):
    def change(self, i):
        return float(self.reads > LATE)


class Pops(Data):
    def __init__(self):
        super().__init__()
        self.left = deque(range(1, LATE))

    def change(self, i):
        return 0.0 if self.left and self.left.pop() else 1.0


class Seen(Data):
    def __init__(self):
        super().__init__()
        self.seen = torch.zeros(SIZE)

    def change(self, i):
        self.seen[i] += 1
        return float(self.seen.sum() > LATE)


class Transform:
    def __init__(self):
        self.calls = np.int64(0)

    def __call__(self):
        self.calls += 1
        return float(self.calls > LATE)


class Transformed(Data):
    def __init__(self):
        super().__init__()
        self.transforms = [Transform()]

    def change(self, i):
        return self.transforms[0]()


class Global(Dataset):
    def __len__(self):
        return SIZE

    def __getitem__(self, i):
        global READ
        READ += 1
        return float(i) + (READ > LATE)


class Vocabulary(Data):
    """Numbers words in the order in which it reads them; only few samples have a rare word."""

    def __init__(self):
        super().__init__()
        self.words = {}

    def __getitem__(self, i):
        return float(self.words.setdefault(f"word {i}", len(self.words)))


def read(dataset, batches, size=2):
    """Read samples in order, in batches."""
    for _ in Loader(dataset, 7).load(keys_of(0, [(size * n + k) % SIZE for k in range(size)]) for n in range(batches)):
        pass


@pytest.mark.parametrize("kind", [Late, Pops, Seen, Transformed, Global, Vocabulary])
def test_samples_that_depend_on_earlier_reads_are_refused(kind):
    global READ
    READ = 0
    with pytest.raises(EngineError, match=r"changes (\w+, )*(reads|left|seen|calls|READ|words)"):
        read(Subset(kind(), range(SIZE)), 2 * EVERY)


def test_a_late_effect_is_found_in_loader_processes():
    stream = Stream(Late(), 7, None, 1)
    try:
        stream.plan((step, keys_of(0, [step % SIZE])) for step in range(2 * EVERY))
        with pytest.raises(EngineError, match="reads"):
            for step in range(2 * EVERY):
                stream.take(step)
    finally:
        stream.close()


class Cached(Data):
    """A cache, a file that must not be opened twice, an augmentation, and a value that a callback sets."""

    def __init__(self):
        super().__init__()
        self.cache, self.file, self.level, self.slept = {}, None, 0, 0.0

    def __getitem__(self, i):
        self.reads += 1
        self.slept += 0.1
        if i not in self.cache:
            self.cache[i] = 10.0 * i
        if self.file is None:
            self.file = self.reads
        assert self.file == 1
        return self.cache[i] + self.level + random.random()


def test_counters_caches_and_values_of_callbacks_are_accepted():
    dataset = Cached()
    loader, found = Loader(dataset, 7), []
    for n, batch in enumerate(loader.load(keys_of(n, [n % SIZE]) for n in range(2 * EVERY))):
        found.append(batch)
        dataset.level = n // 10
    assert dataset.file == 1
    assert len(dataset.cache) == SIZE
    assert len(found) == 2 * EVERY


def test_samples_that_differ_at_each_read_are_left_to_other_checks():
    dataset, drawn = Data(), itertools.count()
    reads = Reads(dataset)
    reads.begin()
    dataset[0]
    reads.check(lambda: next(drawn))
    assert next(drawn) == 3


class Library:
    """Stands for an object of a library, which may not bear earlier values."""

    def __init__(self):
        self.calls = 0


Library.__module__ = "torch.utils"


def test_values_of_objects_of_libraries_stay_as_they_are():
    dataset = Data()
    dataset.pool = Library()
    reads, found = Reads(dataset), []
    reads.begin()
    dataset[0]
    dataset.pool.calls = 1
    reads.check(lambda: found.append((dataset.reads, dataset.pool.calls)))
    assert found == [(1, 1), (0, 1)]


def test_values_are_as_before_after_a_check():
    dataset = Cached()
    reads = Reads(dataset)
    cache = dataset.cache
    for i in range(4):
        reads.begin()
        dataset[i]
        reads.check(lambda i=i: dataset[i] * 0)
    # Batches 1, 2 and 4 are recorded. Each check reads once, and once more in the first state.
    assert dataset.reads == 8
    assert dataset.cache is cache
    assert list(cache) == [0, 1, 2, 3]


def test_a_sample_that_cannot_be_read_in_the_first_state_says_nothing():
    dataset = Late()
    reads = Reads(dataset)

    def fetch():
        if dataset.reads < LATE:
            raise OSError("open already")
        return dataset[0]

    reads.begin()
    dataset.reads = LATE
    reads.check(fetch)
    assert dataset.reads == LATE + 1


def test_checks_do_not_change_the_random_state():
    loader, states = Loader(Data(), 7), []
    for _ in loader.load(keys_of(0, [n]) for n in range(6)):
        states.append((random.getstate(), torch.get_rng_state().sum()))
    # The batches 1, 2 and 4 are checked, the others are not. The first one is seeded for each sample.
    assert all(state == states[4] for state in states[1:])
