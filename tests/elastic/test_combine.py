"""Rules for buffers: the values after several shards become one value, as if the shards had run in sequence."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from local_backend.elastic.collective.buffers import Buffers, find
from local_backend.elastic.combine import concatenate
from local_backend.elastic.errors import EngineError

ROWS = st.lists(st.integers(1, 3), min_size=1, max_size=4)


def numbered(counts):
    """Return the new rows of each shard, all different."""
    start, made = 100.0, []
    for count in counts:
        made.append(torch.arange(start, start + count))
        start += count
    return made


@given(counts=ROWS, size=st.integers(13, 20), pointer=st.integers(0, 12))
def test_a_queue_with_a_pointer_gets_the_rows_of_the_shards_in_order(counts, size, pointer):
    def write(queue, at, rows):
        queue = queue.clone()
        for i, row in enumerate(rows):
            queue[(at + i) % size] = row
        return queue

    before = torch.arange(float(size))
    expected, at = before, pointer
    for rows in numbered(counts):
        expected, at = write(expected, at, rows), at + len(rows)
    values = [write(before, pointer, rows) for rows in numbered(counts)]
    assert torch.equal(concatenate(before, values), expected)
    columns = concatenate(before.expand(2, -1), [value.expand(2, -1) for value in values], 1)
    assert torch.equal(columns, expected.expand(2, -1))


@given(counts=ROWS, size=st.integers(13, 20), front=st.booleans())
def test_a_queue_of_concatenated_rows_gets_them_in_order(counts, size, front):
    def push(queue, rows):
        return torch.cat([rows, queue])[:size] if front else torch.cat([queue, rows])[-size:]

    before = torch.arange(float(size))
    expected = before
    for rows in numbered(counts):
        expected = push(expected, rows)
    assert torch.equal(concatenate(before, [push(before, rows) for rows in numbered(counts)]), expected)


def test_rows_with_gaps_are_refused():
    before = torch.arange(6.0)
    with pytest.raises(EngineError, match="one block"):
        concatenate(before, [torch.tensor([9.0, 1, 9, 3, 4, 5])])


class Memory(nn.Module):
    """A module with a buffer of each kind."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.register_buffer("queue", torch.zeros(8, 2))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.int64))
        self.register_buffer("seen", torch.zeros(3, dtype=torch.int64))
        self.register_buffer("norm", torch.ones(1, dtype=torch.float64))

    def shard(self, number):
        self.queue[int(self.pointer) : int(self.pointer) + 2] = float(number + 1)
        self.pointer.copy_((self.pointer + 2) % 8)
        self.seen[number % 3] += 2**40
        self.norm += number


RULES = {"queue": "concatenate", "pointer": ("sum", 8), "seen": "sum", "nor*": lambda before, values: max(values)}


def combined(shards, steps):
    model = Memory()
    buffers = Buffers([model], RULES, shards, torch.float64)
    for _ in range(steps):
        total = None
        for shard in range(shards):
            buffers.restore()
            model.shard(shard)
            left = buffers.take(shard)
            total = left if total is None else total + left
        buffers.load(total, shards)
    return model


def test_each_rule_combines_its_buffer():
    model = combined(3, 2)
    assert model.queue[:, 0].tolist() == [2, 2, 3, 3, 3, 3, 1, 1]
    assert int(model.pointer) == 12 % 8
    assert model.seen.tolist() == [2 * 2**40] * 3
    assert model.norm.tolist() == [5.0]


def test_a_buffer_change_without_a_rule_is_refused_even_through_data():
    model = Memory()
    buffers = Buffers([model], {}, 2, torch.float64)
    assert buffers.take(0) is None
    model.queue.data[0] = 1.0
    with pytest.raises(EngineError, match="the buffer 'queue' changes"):
        buffers.take(1)
    free = Buffers([model], {}, 2, torch.float64, free=["queue"])
    model.queue[1] = 3.0
    assert free.take(0) is None


def test_a_rule_without_a_buffer_is_refused():
    with pytest.raises(EngineError, match=r"'quue'.* matches no buffer"):
        find([Memory()], {"quue": "mean"})
