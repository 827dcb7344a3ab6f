"""Shards by speed: the best assignment, proposed only if the gain is worth the pause."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import examples

from local_backend.elastic.hub import hub
from local_backend.elastic.hub.balance import MEASURED, SECONDS, STEPS, Balance, counts
from local_backend.elastic.hub.events import BatchResult, Gone, Stepped, Unbalanced
from local_backend.elastic.hub.membership import Generation, Peer, Stage
from local_backend.elastic.hub.state import Phase
from local_backend.elastic.plan import StepPlan


@given(speeds=st.lists(st.floats(0.1, 10), min_size=1, max_size=4), more=st.integers(0, 8))
@settings(max_examples=examples(300), deadline=None)
def test_no_other_assignment_is_faster(speeds, more):
    shards = len(speeds) + more
    given_ = counts(speeds, shards)
    assert sum(given_) == shards and min(given_) >= 1
    possible = (
        shares for shares in itertools.product(range(1, shards + 1), repeat=len(speeds)) if sum(shares) == shards
    )
    best = min(slowest(shares, speeds) for shares in possible)
    assert slowest(given_, speeds) == pytest.approx(best)


def slowest(shares, speeds):
    return max(n / speed for n, speed in zip(shares, speeds, strict=True))


def test_the_fastest_workers_get_a_shard_if_shards_are_too_few():
    assert counts([1.0, 3.0, 2.0], 2) == (0, 1, 1)


def test_equal_speeds_give_the_usual_assignment():
    assert counts([2.0] * 3, 8) == (3, 3, 2)


def state(shares, generation=1, samples=10_000):
    """Return the state of two workers in the middle of a training."""
    shards = sum(shares)
    begun = hub.begin(hub.Course(2, 1, 1, shards, 0, 0, 0))
    peers = {1: Peer("a", Stage.MEMBER), 2: Peer("b", Stage.MEMBER)}
    crew = replace(begun.crew, peers=peers, active=Generation(generation, (1, 2), shares))
    return replace(begun, crew=crew, phase=Phase.TRAINING, plan=StepPlan(samples, 1, shards, 1, 0))


def steps(worker, shards, seconds_per_shard, first, count):
    for step in range(first, first + count):
        results = tuple(BatchResult(i, 1, 0.0, None) for i in range(shards))
        yield Stepped(worker, step, results, seconds_per_shard * shards)


class Job:
    """Feeds a Balance with the steps of both workers."""

    def __init__(self, shares):
        self.balance, self.state, self.now, self.step = Balance(sum(shares)), state(shares), 0.0, 0
        self.run((0.0, 0.0), 1)  # the time of a step arrives with the next one

    def run(self, seconds, count, pace=SECONDS):
        """Return the proposals during `count` steps, one step every `pace` seconds.

        `seconds`: each worker's time per shard.
        """
        proposals = []
        shares = self.state.crew.active.counts
        for _ in range(count):
            self.now += pace
            for worker, own, each in zip((1, 2), shares, seconds, strict=True):
                (event,) = steps(worker, own, each, self.step, 1)
                proposals += self.balance.heard(event, self.state, self.now)
            self.step += 1
        return proposals


def test_a_slow_worker_gets_fewer_shards_once_it_is_measured():
    job = Job((4, 4))
    assert job.run((1.0, 3.0), MEASURED - 1) == []
    assert job.run((1.0, 3.0), 1) == [Unbalanced((6, 2))]


@pytest.mark.parametrize(("seconds", "proposals"), [((1.0, 1.4), []), ((1.0, 1.5), [Unbalanced((5, 3))])])
def test_a_small_gain_is_not_worth_a_pause(seconds, proposals):
    assert Job((4, 4)).run(seconds, MEASURED) == proposals


def test_a_short_delay_does_not_count():
    job = Job((4, 4))
    job.run((1.0, 1.0), MEASURED - 3)
    assert job.run((1.0, 60.0), 3) == []


def test_proposals_are_rare_in_steps():
    job = Job((4, 4))
    assert len(job.run((1.0, 3.0), MEASURED)) == 1
    assert job.run((1.0, 3.0), STEPS - 1) == []
    assert len(job.run((1.0, 3.0), 1)) == 1


def test_proposals_are_rare_in_time():
    job = Job((4, 4))
    assert len(job.run((1.0, 3.0), MEASURED, pace=0.0)) == 1
    assert job.run((1.0, 3.0), 2 * STEPS, pace=0.0) == []
    assert len(job.run((1.0, 3.0), 1, pace=SECONDS)) == 1


def test_a_new_generation_is_measured_anew():
    job = Job((4, 4))
    job.run((1.0, 3.0), MEASURED - 1)
    job.state = state((4, 4), generation=2)
    assert job.run((1.0, 3.0), MEASURED - 1) == []


def test_steps_with_other_shards_than_assigned_are_ignored():
    balance, now = Balance(8), state((4, 4))
    for worker in (1, 2):
        for event in steps(worker, 8, float(worker), 0, 3 * MEASURED):
            assert balance.heard(event, now, 0.0) == []


def test_partial_steps_are_ignored():
    short = state((4, 4), samples=7)
    balance = Balance(8)
    for worker in (1, 2):
        for event in steps(worker, 4, float(worker), 0, 3 * MEASURED):
            assert balance.heard(event, short, 0.0) == []


def test_no_assignment_is_proposed_while_workers_change():
    job = Job((4, 4))
    job.state = replace(job.state, crew=replace(job.state.crew, entering=frozenset({1})))
    assert job.run((1.0, 3.0), 2 * MEASURED) == []


def test_other_events_and_other_workers_are_ignored():
    job = Job((4, 4))
    assert job.balance.heard(Gone(1, "was killed"), job.state, 0.0) == []
    assert job.balance.heard(Stepped(9, 0, ()), job.state, 0.0) == []
