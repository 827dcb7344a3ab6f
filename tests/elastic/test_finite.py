"""The check for finite tensors."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from local_backend.elastic.worker.finishing import all_finite

TYPES = st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64])
LISTS = st.lists(st.tuples(st.lists(st.floats(width=32), max_size=5), TYPES), max_size=4)


@given(LISTS)
def test_every_element_of_every_tensor_counts(lists):
    tensors = [torch.tensor(numbers, dtype=kind) for numbers, kind in lists]
    assert all_finite(tensors) == all(math.isfinite(number) for tensor in tensors for number in tensor.tolist())


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_numbers_whose_squares_overflow_are_finite(kind):
    largest = torch.full((3,), torch.finfo(kind).max, dtype=kind)
    assert all_finite([largest, -largest])
    assert not all_finite([largest, largest * 2])
