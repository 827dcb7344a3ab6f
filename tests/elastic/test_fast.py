"""The fast sum: it equals the exact sum within rounding, and communicates during the backward pass."""

import pytest
import torch
from thread_group import members, the_same, train
from torch import nn
from torch.utils.checkpoint import checkpoint

from local_backend.elastic.collective import fast
from local_backend.elastic.collective.reduce import Layout, make_reducer
from local_backend.elastic.plan import split


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch):
    """One or two gradients per bucket, so that a step has several buckets."""
    monkeypatch.setattr(fast, "FIRST_BUCKET", 64)
    monkeypatch.setattr(fast, "BUCKET", 128)


def tensors(model):
    return [tensor.detach() for tensor in [*model.parameters(), *model.buffers()]]


@pytest.mark.parametrize("own", [True, False], ids=["the engine runs backward", "the user does"])
@pytest.mark.parametrize(("shards", "active"), [(1, 1), (2, 2), (3, 3), (5, 5), (7, 3), (6, 1)])
def test_the_fast_sum_equals_the_exact_sum_within_rounding(shards, active, own):
    expected = tensors(train("exact", split(shards, 1), active=active, own=own)[0])
    for workers in range(1, shards + 1):
        replicas = train("fast", split(shards, workers), active=active, own=own)
        for ours, theirs in zip(tensors(replicas[0]), expected, strict=True):
            torch.testing.assert_close(ours, theirs)
        for replica in replicas[1:]:
            assert all(map(torch.equal, tensors(replica), tensors(replicas[0])))


def test_members_without_shards_take_part():
    expected = tensors(train("exact", ((0, 4),))[0])
    for ranges in [((0, 0), (0, 4)), ((0, 3), (3, 3), (3, 4))]:
        for replica in train("fast", ranges):
            for ours, theirs in zip(tensors(replica), expected, strict=True):
                torch.testing.assert_close(ours, theirs)


def compute(group, model, shards, backward):
    """Compute one step of shards 0 to 3, of which this member has `shards`."""
    layout = Layout([model], torch.optim.SGD(model.parameters(), 0.1))
    step = make_reducer("fast", layout, group).begin_step(((0, 2), (2, 4)), 4, shards)
    for shard in shards:
        step.begin_shard(shard)
        backward(step, shard)
        step.end_shard(shard, 0.25)
    return step


def chain():
    return nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)))


def test_buckets_are_sent_during_the_last_backward_pass_and_not_before():
    def work(group):
        model = the_same(chain)
        seen = []

        def backward(step, shard):
            model[0].weight.register_post_accumulate_grad_hook(lambda _: seen.append(len(group.reduced)))
            step.backward(shard, model(torch.ones(1, 8)).sum(), 0.25)

        step = compute(group, model, (2 * group.rank, 2 * group.rank + 1), backward)
        under_way = len(group.reduced)
        step.finish(0)
        assert seen[0] == 0 < seen[-1] <= under_way < len(group.reduced)
        return group.reduced

    ours, theirs = members(2, work)
    assert ours == theirs


def test_a_users_own_backward_never_sends_a_bucket_early():
    def work(group):
        model = the_same(chain)
        shards = (2 * group.rank, 2 * group.rank + 1)
        step = compute(group, model, shards, lambda *_: model(torch.ones(8)).sum().backward())
        assert group.reduced == []
        step.finish(0)

    members(2, work)


class Twice(nn.Module):
    """With reentrant checkpoints, one backward pass adds to the gradients of a shared layer twice."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.shared = nn.Linear(8, 8)

    def forward(self, x):
        x = self.first(x)
        for _ in range(2):
            x = checkpoint(self.shared, x.tanh(), use_reentrant=True)
        return x.sum()


def test_a_gradient_that_is_added_in_two_parts_is_complete():
    reference = the_same(Twice)
    for shard in range(4):
        (reference(torch.full((1, 8), float(shard))) / 4).backward()

    def work(group):
        model = the_same(Twice)

        def backward(step, shard):
            step.backward(shard, model(torch.full((1, 8), float(shard))), 0.25)

        # Only one member has detected by itself that a bucket was sent too early.
        shards = range(4) if group.rank else ()
        compute(group, model, shards, backward).finish(0)
        for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad)
        return len(group.reduced)

    buckets = members(2, work)
    assert buckets[0] == buckets[1]


def test_half_precision_gradients_are_summed_in_single_precision():
    def work(group):
        model = nn.Linear(2, 1, bias=False).to(torch.bfloat16)
        nn.init.ones_(model.weight)

        def backward(step, shard):
            x = torch.full((2,), [1.0, 2**-8, 2**-8, 2**-7][shard], dtype=torch.bfloat16)
            step.backward(shard, model(x).sum(), 0.25)

        compute(group, model, (2 * group.rank, 2 * group.rank + 1), backward).finish(0)
        # In bfloat16, 1 + 2**-8 is 1.
        assert model.weight.grad.tolist() == [[0.25390625, 0.25390625]]

    members(2, work)
