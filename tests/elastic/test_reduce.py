"""Layout and exact reduction: the same bits for every number of workers, which are threads in these tests."""

import pytest
import torch
from thread_group import Branches, members, the_same, train
from torch import nn

from local_backend.elastic.collective.reduce import Layout, make_reducer
from local_backend.elastic.errors import EngineError, GroupBroken
from local_backend.elastic.plan import split


def fingerprint(model):
    return [tensor.detach().numpy().tobytes() for tensor in [*model.parameters(), *model.buffers()]]


def alone(model, optimizer=None):
    layout = Layout([model], optimizer or torch.optim.SGD(model.parameters(), 0.1))
    step = make_reducer("exact", layout, None).begin_step(((0, 1),), 1, (0,))
    step.begin_shard(0)
    return layout, step


@pytest.mark.parametrize("own", [True, False], ids=["the engine runs backward", "the user does"])
@pytest.mark.parametrize(("shards", "active"), [(1, 1), (2, 2), (3, 3), (5, 5), (8, 8), (7, 3), (6, 1)])
def test_every_number_of_workers_gives_the_same_bits(shards, active, own):
    expected = fingerprint(train("exact", split(shards, 1), active=active, own=own)[0])
    for workers in range(2, shards + 1):
        for replica in train("exact", split(shards, workers), active=active, own=own):
            assert fingerprint(replica) == expected


def test_members_without_shards_take_part():
    expected = fingerprint(train("exact", ((0, 4),))[0])
    for ranges in [((0, 0), (0, 4)), ((0, 3), (3, 3), (3, 4)), ((0, 1), (1, 4), (4, 4))]:
        for replica in train("exact", ranges):
            assert fingerprint(replica) == expected


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_gradients_are_the_mean_and_absent_if_no_shard_has_one(mode):
    for ranges in [((0, 4),), ((0, 3), (3, 4))]:
        model = train(mode, ranges, steps=1)[0]
        assert model.never.weight.grad is None
        assert model.frozen.weight.grad is None
        reference = the_same(Branches)
        for shard in range(4):
            x = torch.randn(4, 5, generator=torch.Generator().manual_seed(shard))
            (reference(x, shard == 1).square().mean() / 4).backward()
        for name in ("used", "sometimes", "conv"):
            torch.testing.assert_close(getattr(model, name).weight.grad, getattr(reference, name).weight.grad)


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_buffers_are_means_of_the_shards_and_counters_are_from_shard_0(mode):
    model, reference = train(mode, split(4, 2), steps=1)[0], the_same(Branches)
    means = []
    for shard in range(4):
        fresh = the_same(Branches)
        fresh(torch.randn(4, 5, generator=torch.Generator().manual_seed(shard)), False)
        means.append(fresh.norm.running_mean)
    torch.testing.assert_close(model.norm.running_mean, torch.stack(means).mean(0))
    assert model.norm.num_batches_tracked.item() == 1
    assert torch.equal(model.constant, reference.constant)


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_words_arrive_at_all_members_in_order_of_rank(mode, workers):
    words = [2**31, 2**24 + 1, 0][:workers]

    def work(group):
        layout = Layout([model := nn.Linear(2, 2)], torch.optim.SGD(model.parameters(), 0.1))
        reducer = make_reducer(mode, layout, group)
        ranges = split(3, workers)
        step = reducer.begin_step(ranges, 3, range(*ranges[group.rank]))
        for shard in range(*ranges[group.rank]):
            step.begin_shard(shard)
            step.backward(shard, model(torch.ones(1, 2)).sum(), 1 / 3)
            step.end_shard(shard, 1 / 3)
        return step.finish(words[group.rank])

    assert members(workers, work) == [words] * workers


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_a_broken_step_changes_no_committed_value(mode):
    def work(group):
        model = the_same(Branches)
        layout = Layout([model], torch.optim.SGD(model.parameters(), 0.1))
        before = [p.clone() for p in model.parameters()], [b.clone() for _, b in layout.committed]
        reducer = make_reducer(mode, layout, group)
        step = reducer.begin_step(split(2, 2), 2, (group.rank,))
        step.begin_shard(group.rank)
        step.backward(group.rank, model(torch.randn(4, 5), True).sum(), 0.5)
        step.end_shard(group.rank, 0.5)
        group.breaks_after(1 if mode == "exact" else 0)
        with pytest.raises(GroupBroken):
            step.finish(0)
        assert all(map(torch.equal, before[0], model.parameters()))
        assert all(map(torch.equal, before[1], [b for _, b in layout.committed]))
        live = [b for b, _ in layout.committed]
        assert not all(map(torch.equal, before[1], live))
        step.undo()
        assert all(map(torch.equal, before[1], live))

    members(2, work)


def test_large_counters_keep_every_bit():
    model = nn.Sequential(nn.Linear(2, 2))
    number = -(2**63) + 12345678901234567
    model.register_buffer("count", torch.tensor([number, 2**40 + 1, -1]))
    model.register_buffer("flag", torch.tensor(True))
    model.fabric_buffers = {"count": "sum", "flag": "first"}
    _, step = alone(model)
    model(torch.ones(1, 2)).sum().backward()
    model.count += 1
    model.flag.logical_not_()
    step.end_shard(0, 1.0)
    step.finish(0)
    assert model.count.tolist() == [number + 1, 2**40 + 2, 0]
    assert model.flag.item() is False


def test_a_frozen_model_is_refused():
    frozen = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(EngineError, match="all are frozen"):
        Layout([frozen], torch.optim.SGD(frozen.parameters(), 0.1))


@pytest.mark.parametrize("rule", ["meann", ("sum", "8"), ("mean", 2), 3, ("sum", 1, 2)])
def test_an_unknown_rule_is_refused_with_the_name_of_the_buffer(rule):
    model = nn.Sequential(nn.Linear(2, 2))
    model.register_buffer("seen", torch.zeros(3))
    model.fabric_buffers = {"seen": rule}
    with pytest.raises(EngineError, match=r"fabric_buffers\['seen'\] of the buffer 'seen' must be one of"):
        alone(model)


def test_a_large_integer_buffer_that_changes_is_refused_by_name():
    model = nn.Sequential(nn.Linear(2, 2))
    model.register_buffer("seen", torch.zeros(1000, dtype=torch.int64))
    _, step = alone(model)
    model(torch.ones(1, 2)).sum().backward()
    model.seen[3] = 1
    with pytest.raises(EngineError, match="the buffer 'seen' changes"):
        step.end_shard(0, 1.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions_are_summed(dtype):
    model = nn.Linear(3, 2).to(dtype)
    _, step = alone(model)
    model(torch.ones(4, 3, dtype=dtype)).sum().backward()
    expected = model.weight.grad.clone()
    step.end_shard(0, 1.0)
    step.finish(0)
    assert model.weight.grad.dtype == dtype
    assert torch.equal(model.weight.grad, expected)


def test_one_shard_gives_the_bits_of_plain_training():
    model, plain = the_same(Branches), the_same(Branches)
    _, step = alone(model)
    x = torch.randn(4, 5)
    plain(x, True).square().mean().backward()
    step.backward(0, model(x, True).square().mean(), 1.0)
    step.end_shard(0, 1.0)
    step.finish(0)
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None)
        assert ours.grad is None or torch.equal(ours.grad, theirs.grad)


class Tied(nn.Module):
    """A model whose backward pass uses the same memory for the gradients of `left` and `right`."""

    def __init__(self):
        super().__init__()
        self.left = nn.Parameter(torch.ones(2, 3))
        self.right = nn.Parameter(torch.ones(2, 3))
        self.table = nn.Embedding(7, 3, sparse=True)
        nn.init.ones_(self.table.weight)

    def forward(self, x):
        return (self.left.view(-1) + self.right.view(-1)).square().sum() * x + self.table(INDEX).sum() * x


INDEX = torch.tensor([1, 1, 5])


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("ranges", [((0, 4),), ((0, 2), (2, 4)), ((0, 3), (3, 4))], ids=str)
def test_gradients_that_share_memory_and_sparse_gradients_are_summed(mode, ranges):
    def work(group):
        model = Tied()
        layout = Layout([model], torch.optim.SGD(model.parameters(), 0.1))
        reducer = make_reducer(mode, layout, group)
        step = reducer.begin_step(ranges, 4, range(*ranges[group.rank]))
        for shard in range(*ranges[group.rank]):
            step.begin_shard(shard)
            step.backward(shard, model(float(shard + 1)), 0.25)
            step.end_shard(shard, 0.25)
        step.finish(0)
        mean = (1 + 2 + 3 + 4) / 4
        assert torch.equal(model.left.grad, torch.full((2, 3), 4 * mean))
        assert torch.equal(model.right.grad, model.left.grad)
        assert model.table.weight.grad[:, 0].tolist() == [0, 2 * mean, 0, 0, 0, mean, 0]

    members(len(ranges), work)


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("ranges", [((0, 4),), ((0, 2), (2, 4)), ((0, 3), (3, 4))], ids=str)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_gradients_of_complex_parameters_are_summed(mode, ranges, dtype):
    def work(group):
        model = nn.Module()
        model.plain = nn.Parameter(torch.ones(3))
        model.wave = nn.Parameter(torch.tensor([[1 + 2j, 3 - 1j, 2j], [1, -1j, 4]], dtype=dtype).T)
        layout = Layout([model], torch.optim.SGD(model.parameters(), 0.1))
        step = make_reducer(mode, layout, group).begin_step(ranges, 4, range(*ranges[group.rank]))
        for shard in range(*ranges[group.rank]):
            step.begin_shard(shard)
            factor = torch.tensor(shard + 1 - 1j, dtype=dtype)
            step.backward(shard, (factor * model.wave.conj()).real.sum() + model.plain.sum(), 0.25)
            step.end_shard(shard, 0.25)
        step.finish(0)
        assert (model.wave.grad.dtype, model.wave.grad.stride()) == (dtype, model.wave.stride())
        assert torch.equal(model.wave.grad, torch.full((3, 2), 2.5 - 1j, dtype=dtype))
        assert torch.equal(model.plain.grad, torch.ones(3))

    members(len(ranges), work)


def test_a_users_step_may_change_gradients_freely():
    """The step runs several backward passes, clears gradients meanwhile, and reuses its own memory for gradients."""
    own = torch.empty(3, 5)

    def sum_over(ranges):
        def work(group):
            model = nn.Linear(5, 3, bias=False)
            nn.init.ones_(model.weight)
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            layout = Layout([model], optimizer)
            reducer = make_reducer("exact", layout, group)
            step = reducer.begin_step(ranges, 3, range(*ranges[group.rank]))
            for shard in range(*ranges[group.rank]):
                step.begin_shard(shard)
                model(torch.ones(5)).sum().backward()
                optimizer.zero_grad(set_to_none=shard == 1)
                model(torch.full((5,), shard + 1.0)).sum().backward()
                model(torch.full((5,), 0.5)).sum().backward()
                if group.size == 1:
                    model.weight.grad = own.copy_(model.weight.grad)
                step.end_shard(shard, 1 / 3)
            step.finish(0)
            return model.weight.grad.clone()

        return members(len(ranges), work)

    (expected,) = sum_over(((0, 3),))
    torch.testing.assert_close(expected, torch.full((3, 5), 2.5))
    for gradient in sum_over(((0, 2), (2, 3))):
        assert torch.equal(gradient, expected)
