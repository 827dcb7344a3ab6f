"""The pure parts of the plan: shards, tree, sampler, seeds."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import examples

from local_backend.elastic.plan import Fold, StepPlan, batches, blocks, derive_seed, sample_seed, split

shards_and_workers = st.integers(1, 64).flatmap(lambda v: st.tuples(st.just(v), st.integers(1, v)))
plans = st.builds(
    StepPlan,
    samples=st.integers(1, 400),
    batch=st.integers(1, 40),
    step_samples=st.integers(1, 200),
    epochs=st.just(2),
    seed=st.integers(0, 2**64 - 1),
    shuffle=st.booleans(),
)


def pair(left, right):
    """Return a sum that records the order of additions."""
    return (left, right)


def tree(first, size, leaves):
    """Return the canonical tree over the leaves first to first+size, built in the simple, slow way."""
    if size == 1:
        return first
    half = size // 2
    left = tree(first, half, leaves)
    return (left, tree(first + half, half, leaves)) if first + half < leaves else left


@given(shards_and_workers)
def test_split_is_contiguous_balanced_and_complete(case):
    shards, workers = case
    ranges = split(shards, workers)
    assert [n for first, last in ranges for n in range(first, last)] == list(range(shards))
    sizes = [last - first for first, last in ranges]
    assert len(sizes) == workers
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1


@pytest.mark.parametrize(("shards", "workers"), [(4, 5), (4, 0), (0, 0)])
def test_split_refuses_more_workers_than_shards(shards, workers):
    with pytest.raises(ValueError, match="cannot be split"):
        split(shards, workers)


@given(shards_and_workers)
def test_the_sum_has_the_same_order_for_every_number_of_workers(case):
    shards, workers = case
    total = Fold(shards, pair)
    for first, last in split(shards, workers):
        local = Fold(shards, pair)
        for shard in range(first, last):
            local.push((shard, 1), shard)
        assert tuple(block for block, _ in local.parts()) == blocks(first, last, shards)
        for block, value in local.parts():
            total.push(block, value)
    places = 1
    while places < shards:
        places *= 2
    assert total.root() == tree(0, places, shards)


@given(st.integers(1, 64), st.integers(0, 64), st.integers(0, 64))
def test_blocks_cover_a_range_once_and_are_aligned(leaves, first, length):
    last = min(first + length, leaves)
    covered = []
    for start, size in blocks(first, last, leaves):
        assert start % size == 0
        covered += range(start, min(start + size, leaves))
    assert covered == list(range(first, last))


@given(st.integers(1, 40).filter(lambda n: n > 1), st.data())
def test_an_incomplete_sum_is_refused(leaves, data):
    missing = data.draw(st.integers(0, leaves - 1))
    fold = Fold(leaves, pair)
    for leaf in range(leaves):
        if leaf != missing:
            fold.push((leaf, 1), leaf)
    with pytest.raises(ValueError, match="not all"):
        fold.root()


@given(plans)
@settings(max_examples=examples(200), deadline=None)
def test_every_sample_is_used_exactly_once_per_epoch(plan):
    for epoch in range(plan.epochs):
        order = plan.order(epoch)
        seen = Counter()
        shards = 0
        for step in range(plan.steps_per_epoch):
            taken = []
            for shard in range(plan.shards):
                part = plan.indices(epoch, step, shard, order)
                assert len(part) == plan.size_of_shard(step, shard)
                assert bool(part) == (shard < plan.active_shards(step))
                assert len(part) <= plan.batch
                shards += bool(part)
                taken += part
            assert len(taken) == plan.size_of_step(step) > 0
            seen.update(taken)
            weights = sum(plan.weight(step, shard) for shard in range(plan.shards))
            assert weights == pytest.approx(1.0)
        assert seen == Counter(range(plan.samples))
        assert plan.shuffle or list(order) == list(range(plan.samples))
        assert shards == plan.batches_per_epoch


@given(plans, st.integers(1, 5))
def test_drop_last_leaves_out_only_the_last_samples_of_the_order(plan, window):
    unit, plan = plan.step_samples, replace(plan, step_samples=plan.step_samples * window, multiple=plan.step_samples)
    for epoch in range(plan.epochs):
        order = plan.order(epoch)
        taken = [
            sample
            for step in range(plan.steps_per_epoch)
            for shard in range(plan.shards)
            for sample in plan.indices(epoch, step, shard, order)
        ]
        assert taken == list(order[: plan.samples // unit * unit])
        assert len(taken) == plan.epoch_samples
        assert plan.samples - len(taken) < unit


@given(plans, st.booleans())
def test_batch_sizes_are_the_sizes_of_all_shards(plan, drop):
    plan = replace(plan, multiple=plan.step_samples if drop else 1)
    sizes = {plan.size_of_shard(step, shard) for step in range(plan.steps_per_epoch) for shard in range(plan.shards)}
    assert plan.batch_sizes() == sizes - {0}


def test_the_steps_of_a_recorded_training_are_reproduced():
    plan = StepPlan(samples=244, batch=64, step_samples=128, epochs=15, seed=0)
    assert (plan.shards, plan.steps_per_epoch, plan.batches_per_epoch, plan.steps) == (2, 2, 4, 30)
    assert [plan.size_of_shard(1, shard) for shard in range(2)] == [64, 52]


def test_a_step_that_is_no_multiple_of_the_batch_has_a_smaller_last_shard():
    plan = StepPlan(samples=1000, batch=64, step_samples=100, epochs=1, seed=0)
    assert plan.shards == 2
    assert [plan.size_of_shard(0, shard) for shard in range(2)] == [64, 36]
    assert plan.weight(0, 1) == 0.36


def test_orders_differ_between_epochs_and_seeds_and_repeat():
    plan = StepPlan(samples=100, batch=10, step_samples=10, epochs=2, seed=5)
    other = StepPlan(samples=100, batch=10, step_samples=10, epochs=2, seed=6)
    assert list(plan.order(0)) == list(plan.order(0))
    assert list(plan.order(0)) != list(plan.order(1))
    assert list(plan.order(0)) != list(other.order(0))


def test_seeds_never_change():
    assert derive_seed(1, 2, 3) == 6520558355739401531
    assert derive_seed(0) != derive_seed(0, 0)
    assert sample_seed(1, -1, 0) != sample_seed(1, 0, 0)
    assert len({sample_seed(7, epoch, sample) for epoch in range(30) for sample in range(30)}) == 900


@given(st.integers(0, 200), st.integers(1, 30))
def test_validation_batches_cover_all_samples_in_order(samples, batch):
    parts = list(batches(samples, batch))
    assert [i for part in parts for i in part] == list(range(samples))
    assert all(len(part) == batch for part in parts[:-1])
