"""Random numbers of samples: the same as if each sample were loaded alone, with few fetches if no sample draws."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from local_backend.elastic.data.seeding import SeededLoading, seed_everything
from local_backend.elastic.errors import EngineError

#: The generators from which a sample may draw.
DRAWS = {
    "torch": lambda: torch.rand(1).item(),
    "random": random.random,
    "numpy": np.random.rand,
    "gauss": lambda: random.gauss(0, 1),
}


def seed_of(key):
    return key * 1_000_003 + 7


def alone(key, who):
    seed_everything(seed_of(key))
    return key, DRAWS[who]() if who else None


@given(
    st.lists(st.lists(st.integers(0, 20), max_size=6), max_size=6),
    st.dictionaries(st.integers(0, 20), st.sampled_from(sorted(DRAWS))),
    st.booleans(),
)
def test_a_sample_has_the_value_that_it_has_when_loaded_alone(batches, drawers, collate_draws):
    def collate(samples):
        return samples, random.random() if collate_draws else None

    loading = SeededLoading(lambda key: (key, DRAWS[drawers[key]]() if key in drawers else None), collate)
    for keys in batches:
        samples, extra = loading.load(keys, seed_of)
        assert samples == [alone(key, drawers.get(key)) for key in keys]
        if collate_draws and keys:
            alone(keys[-1], drawers.get(keys[-1]))
            assert extra == random.random(), "the collate function did not continue from the last sample's state"


@pytest.mark.parametrize(("drawers", "fetches"), [((), 9), ((0,), 11), ((4,), 15), ((8,), 15)])
def test_samples_are_fetched_again_only_after_one_of_them_draws(drawers, fetches):
    fetched = []

    def fetch(key):
        fetched.append(key)
        return random.random() if key in drawers else 0.0

    loading = SeededLoading(fetch, list)
    for first in (0, 3, 6):
        loading.load(range(first, first + 3), seed_of)
    assert len(fetched) == fetches


class Remembering:
    """Replaces some samples by others that it draws, and remembers the replacements."""

    def __init__(self, broken, keep):
        self.broken, self.instead, self.keep = broken, list(range(20)) if keep is list else {}, keep

    def __getitem__(self, key):
        if self.keep is list:
            if self.instead[key] in self.broken:
                self.instead[key] = random.randrange(10, 20)
            return self.instead[key]
        if key in self.broken and key not in self.instead:
            self.instead[key] = random.randrange(10, 20)
        return self.instead.get(key, key)


@pytest.mark.parametrize("broken", [0, 4, 8])
@pytest.mark.parametrize("keep", [list, dict])
def test_a_data_set_that_remembers_drawn_numbers_is_refused(broken, keep):
    data = Remembering({broken}, keep)
    loading = SeededLoading(lambda key: data[key], list)
    with pytest.raises(EngineError, match="the data set caches random numbers"):
        for first in (0, 3, 6):
            loading.load(range(first, first + 3), seed_of)


def test_a_remembering_data_set_whose_other_samples_draw_is_refused():
    data = Remembering({4}, dict)
    loading = SeededLoading(lambda key: (data[key], random.random()), list, lambda: len(data.instead))
    loading.load([0, 1, 2], seed_of)
    with pytest.raises(EngineError, match="the data set caches random numbers"):
        loading.load([3, 4, 5], seed_of)


def test_cached_samples_that_are_augmented_later_are_as_if_loaded_alone():
    kept = {}

    def fetch(key):
        kept.setdefault(key, key * 2)
        return kept[key] + random.random()

    loading = SeededLoading(fetch, list, lambda: len(kept))
    found = [loading.load(keys, seed_of) for keys in ([0, 1], [2, 3], [1, 2])]
    kept.clear()
    assert found == [SeededLoading(fetch, list).load(keys, seed_of) for keys in ([0, 1], [2, 3], [1, 2])]


def initial():
    return torch.initial_seed()


def put_back():
    with torch.random.fork_rng():
        return torch.rand(1).item()


@pytest.mark.parametrize(
    "look",
    [initial, lambda: random.getstate()[1][0], lambda: np.random.get_state()[1][0], put_back],
    ids=["torch", "random", "numpy", "put back"],
)
def test_generators_are_seeded_for_each_sample_if_user_code_reads_them(look):
    def alone(key):
        seed_everything(seed_of(key))
        return look()

    loading = SeededLoading(lambda _: look(), list)
    for keys in ([1, 2], [3, 4], [2, 1]):
        assert loading.load(keys, seed_of) == [alone(key) for key in keys]
