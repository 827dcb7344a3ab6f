"""Fingerprints: equal for equal bits, in every process; different for different bits."""

import random
from collections import OrderedDict, deque

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from local_backend.elastic.state.fingerprints import leaves, of_tensors, tensors_in

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.complex64)


def of(tensor):
    return of_tensors([tensor])[0]


def random_tensor(dtype, size, seed):
    """Return a tensor with random bits."""
    bits = torch.randint(0, 256, (size * torch.empty(0, dtype=dtype).element_size(),), dtype=torch.uint8,
                         generator=torch.Generator().manual_seed(seed))
    return bits.view(dtype)


@given(dtype=st.sampled_from(DTYPES), size=st.integers(1, 5000), seed=st.integers(0, 99), data=st.data())
@settings(max_examples=60, deadline=None)
def test_one_changed_bit_changes_the_fingerprint(dtype, size, seed, data):
    tensor = random_tensor(dtype, size, seed)
    other = tensor.clone()
    assert of(other) == of(tensor)
    bits = other.view(torch.uint8)
    place = data.draw(st.integers(0, bits.numel() - 1))
    bits[place] ^= 1 << data.draw(st.integers(0, 7))
    assert of(other) != of(tensor)


@given(size=st.integers(2, 5000), seed=st.integers(0, 99), data=st.data())
@settings(max_examples=40, deadline=None)
def test_the_order_of_elements_changes_the_fingerprint(size, seed, data):
    tensor = random_tensor(torch.int64, size, seed)
    places = st.lists(st.integers(0, size - 1), min_size=2, max_size=2, unique=True)
    a, b = data.draw(places)
    tensor[b] = tensor[a] + 1
    swapped = tensor.clone()
    swapped[[a, b]] = tensor[[b, a]]
    assert of(swapped) != of(tensor)


def test_the_memory_layout_does_not_count_but_type_and_shape_do():
    tensor = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    assert of(tensor) == of(tensor.t().contiguous().t()) == of(torch.cat([torch.zeros(1, 5), tensor])[1:])
    assert len({of(tensor), of(tensor.view(5, 7)), of(tensor.view(torch.int32)), of(torch.empty(0))}) == 4


class Thing:
    __slots__ = ("__dict__", "slot")

    def __init__(self, value):
        self.slot, self.value, self.itself = value, [value, {"deep": value}], self


def table(value, name_of=lambda item: None):
    return {path: of(leaf) if isinstance(leaf, torch.Tensor) else leaf for path, leaf in leaves(value, "x", name_of)}


def test_the_order_of_keys_and_sets_does_not_count():
    assert table({"a": 1, "b": {2, 10, 33}}) == table(OrderedDict(b={33, 2, 10}, a=1))
    assert table({"a": 1}) != table({"a": 2})
    assert table({"a": 1}) != table({"b": 1})


@pytest.mark.parametrize("make", [
    Thing,
    lambda value: [torch.tensor(value), (value,), deque([None, Thing(value)])],
    lambda value: [("a.jpg", 0)] * 1500 + [("b.jpg", value)],
    lambda value: [("a.jpg", torch.tensor(0))] * 1500 + [("b.jpg", torch.tensor(value))],
    lambda value: np.array([value, 0.5]),
    np.random.default_rng,
    np.random.RandomState,
    lambda value: torch.Generator().manual_seed(value),
    random.Random,
    lambda value: nn.Sequential(nn.BatchNorm1d(value)),
    lambda value: nn.Sequential(nn.BatchNorm1d(2)).requires_grad_(False).eval() if value == 1 else nn.Identity(),
])
def test_different_values_have_different_fingerprints(make):
    assert table(make(1)) == table(make(1))
    assert table(make(1)) != table(make(2))


def test_arrays_of_other_types_or_shapes_with_the_same_bytes_differ():
    zeros = np.zeros(16, np.uint8)
    types = ("u1", "i1", "?", "u2", "f2", "i4", "u4", "f4", "i8", "u8", "f8", "c8", "c16", np.longdouble)
    arrays = [zeros.view(kind) for kind in types]
    arrays += [zeros.reshape(4, 4), zeros.reshape(16, 1), np.zeros(0), np.zeros((0, 3))]
    assert len({table(array)["x"] for array in arrays}) == len(arrays)


@pytest.mark.parametrize("name", ["u1", "?", "u2", "f2", "i8", "c16", "longdouble"])
def test_the_same_numbers_in_any_layout_have_one_fingerprint(name):
    array = np.arange(12).astype(name).reshape(3, 4)
    assert table(array) == table(np.asfortranarray(array)) == table(array[::-1].copy()[::-1])
    assert table(array[0, 1]) == table(array[0, 1].copy()) and table(np.array(array[0, 1])) != table(array[0, 1:2])


def test_named_objects_inside_a_value_are_not_traversed():
    model = nn.Linear(2, 2)
    seen = table({"model": model, "other": 1}, lambda item: "the model" if item is model else None)
    assert seen == {"x": "2", "x['model']": "'the model'", "x['other']": "1"}
    assert len(table(model, lambda item: "the model" if item is model else None)) == 2, "the value was not traversed"


def test_only_tensors_in_containers_and_modules_are_found():
    found = dict(tensors_in(
        {"a": [torch.ones(1), np.zeros(2)], "b": nn.Linear(1, 1), "c": Thing(torch.ones(1)), "d": 1.5}, "x",
        lambda item: None,
    ))
    assert set(found) == {"x['a'][0]", "x['a'][1]", "x['b'].weight", "x['b'].bias"}
