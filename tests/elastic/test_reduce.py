"""Layout and reduction: the same bits for every number of workers. Workers are threads with an in-memory group."""

import threading

import pytest
import torch
from support import PATIENCE
from torch import nn

from local_backend.elastic.errors import EngineError
from local_backend.elastic.plan import split
from local_backend.elastic.reduce import Layout, new_fold, reduce


class ThreadGroup:
    """The interface of elastic.group.Group between threads of this process."""

    def __init__(self, rank, size, board, barrier):
        self.rank, self.size = rank, size
        self._board, self._barrier = board, barrier

    def all_to_all(self, received, sent, in_sizes, out_sizes):
        self._board[self.rank] = sent.split(list(out_sizes))
        self._barrier.wait(PATIENCE)
        parts = [self._board[member][self.rank] for member in range(self.size)]
        assert [len(part) for part in parts] == list(in_sizes)
        received.copy_(torch.cat(parts))
        self._barrier.wait(PATIENCE)

    def all_gather(self, gathered, chunk):
        self._board[self.rank] = chunk
        self._barrier.wait(PATIENCE)
        gathered.copy_(torch.cat([self._board[member] for member in range(self.size)]))
        self._barrier.wait(PATIENCE)


class Branches(nn.Module):
    """A parameter that some shards use, one that none uses, a frozen one; statistics, counters, constants."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.BatchNorm1d(5)
        self.used = nn.Linear(5, 3)
        self.sometimes = nn.Linear(5, 3)
        self.never = nn.Linear(5, 3)
        self.frozen = nn.Linear(5, 5)
        self.frozen.requires_grad_(False)
        self.register_buffer("constant", torch.tensor([0.1, float("-inf"), 3.3]))
        self.register_buffer("table", torch.arange(100))
        self.register_buffer("hidden", torch.zeros(2), persistent=False)

    def forward(self, x, sometimes):
        x = self.norm(self.frozen(x))
        self.hidden += x.detach().mean()
        return self.used(x) + (self.sometimes(x) if sometimes else 0)


def train(workers, shards, steps=3, active=None):
    """(state of every replica, gradients of the last step) after some steps on that many threads."""
    board, barrier = {}, threading.Barrier(workers)
    models = [Branches() for _ in range(workers)]
    failures = []

    def work(rank):
        try:
            model = models[rank]
            layout = Layout([model], torch.optim.SGD(model.parameters(), 0.1))
            group = ThreadGroup(rank, workers, board, barrier) if workers > 1 else None
            ranges = split(shards, workers)
            for step in range(steps):
                one_step(model, layout, group, ranges, step, active or shards)
        except BaseException as error:
            failures.append(error)
            barrier.abort()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return models


def one_step(model, layout, group, ranges, step, active):  # noqa: PLR0917
    first, last = ranges[group.rank if group else 0]
    fold = new_fold(active)
    for shard in range(first, min(last, active)):
        layout.begin_shard()
        x = torch.randn(4, 5, generator=torch.Generator().manual_seed(step * 100 + shard))
        model(x, shard == 1).square().mean().backward()
        fold.push((shard, 1), layout.collect(shard, 1 / active))
    layout.apply(reduce(fold.parts(), ranges, active, layout, group), active)
    with torch.no_grad():
        for parameter in layout.parameters:
            if parameter.grad is not None:
                parameter.sub_(0.1 * parameter.grad)


def fingerprint(model):
    return [tensor.detach().numpy().tobytes() for tensor in [*model.parameters(), *model.buffers()]]


@pytest.mark.parametrize(("shards", "active"), [(1, 1), (2, 2), (3, 3), (5, 5), (8, 8), (7, 3), (6, 1)])
def test_same_bits_for_every_number_of_workers(shards, active):
    torch.set_num_threads(1)
    expected = fingerprint(train(1, shards, active=active)[0])
    for workers in range(2, shards + 1):
        for replica in train(workers, shards, active=active):
            assert fingerprint(replica) == expected


def test_gradients_are_the_mean_and_absent_where_no_shard_has_any():
    model = train(1, 4, steps=1)[0]
    assert model.never.weight.grad is None
    assert model.frozen.weight.grad is None
    reference = Branches()
    for shard in range(4):
        x = torch.randn(4, 5, generator=torch.Generator().manual_seed(shard))
        (reference(x, shard == 1).square().mean() / 4).backward()
    for name in ("used", "sometimes"):
        torch.testing.assert_close(getattr(model, name).weight.grad, getattr(reference, name).weight.grad)


def test_buffers_are_means_of_the_shards_and_counters_those_of_shard_0():
    model, reference = train(1, 4, steps=1)[0], Branches()
    means = []
    for shard in range(4):
        fresh = Branches()
        fresh(torch.randn(4, 5, generator=torch.Generator().manual_seed(shard)), False)
        means.append(fresh.norm.running_mean)
    torch.testing.assert_close(model.norm.running_mean, torch.stack(means).mean(0))
    assert model.norm.num_batches_tracked.item() == 1
    assert torch.equal(model.constant, reference.constant)


def test_large_counters_keep_every_bit():
    model = nn.Sequential(nn.Linear(2, 2))
    number = -(2**63) + 12345678901234567
    model.register_buffer("count", torch.tensor([number, 2**40 + 1, -1]))
    model.register_buffer("flag", torch.tensor(True))
    layout = Layout([model], torch.optim.SGD(model.parameters(), 0.1))
    layout.begin_shard()
    model(torch.ones(1, 2)).sum().backward()
    model.count += 1
    model.flag.logical_not_()
    fold = new_fold(1)
    fold.push((0, 1), layout.collect(0, 1.0))
    layout.apply(fold.root(), 1)
    assert model.count.tolist() == [number + 1, 2**40 + 2, 0]
    assert model.flag.item() is False


def test_what_cannot_be_summed_is_refused_with_a_sentence():
    frozen = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(EngineError, match="all are frozen"):
        Layout([frozen], torch.optim.SGD(frozen.parameters(), 0.1))
    wave = nn.Linear(2, 2, dtype=torch.complex64)
    with pytest.raises(EngineError, match="complex"):
        Layout([wave], torch.optim.SGD(wave.parameters(), 0.1))


def test_a_large_whole_number_buffer_that_changes_is_refused_by_name():
    model = nn.Sequential(nn.Linear(2, 2))
    model.register_buffer("seen", torch.zeros(1000, dtype=torch.int64))
    layout = Layout([model], torch.optim.SGD(model.parameters(), 0.1))
    layout.begin_shard()
    model(torch.ones(1, 2)).sum().backward()
    model.seen[3] = 1
    with pytest.raises(EngineError, match="the buffer seen changes"):
        layout.collect(0, 1.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions(dtype):
    model = nn.Linear(3, 2).to(dtype)
    layout = Layout([model], torch.optim.SGD(model.parameters(), 0.1))
    layout.begin_shard()
    model(torch.ones(4, 3, dtype=dtype)).sum().backward()
    expected = model.weight.grad.clone()
    fold = new_fold(1)
    fold.push((0, 1), layout.collect(0, 1.0))
    layout.apply(fold.root(), 1)
    assert model.weight.grad.dtype == dtype
    assert torch.equal(model.weight.grad, expected)
