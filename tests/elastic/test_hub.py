"""The hub's decisions, driven by simulated workers in random order; no process, no socket."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from local_backend.elastic import events, hub
from local_backend.elastic.events import (
    Arrived,
    AtBoundary,
    BatchResult,
    Begin,
    Broken,
    Commit,
    End,
    Fail,
    Failed,
    Finished,
    Gone,
    Ready,
    Send,
    Stepped,
    TaskDone,
    Validated,
)
from local_backend.elastic.hub import Course, Phase, State
from local_backend.elastic.plan import Plan, split


def course(workers=2, epochs=2, **changes):
    values = {
        "workers": tuple(range(1, workers + 1)),
        "epochs": epochs,
        "batch": 4,
        "step_samples": 16,
        "seed": 1,
        "validation_freq": 1,
        "checkpoint_freq": 1,
        **changes,
    }
    return Course(**values)


class SimulatedWorker:
    """Says what a worker would say; `heard` is called with each message for it."""

    def __init__(self, number, samples, test_batches):
        self.number = number
        self.says = [Arrived(number)]
        self._ready = Ready(number, samples, test_batches)
        self.saved = []

    def heard(self, message):
        if message["op"] == "load":
            self.says.append(self._ready)
        elif message["op"] == "start":
            self.plan = Plan(**message["plan"])
            self.rank, self.members = message["members"].index(self.number), len(message["members"])
            self._epoch(0)
        elif message["op"] == "save":
            self.saved.append((message["epoch"], message["final"]))
            self.says.append(TaskDone(self.number))
        elif message["op"] == "test":
            results = tuple(result(i) for i in range(message["first"], message["last"]))
            self.says.append(TaskDone(self.number, results))
        elif message["op"] == "go":
            self._epoch(self.epoch + 1)
        elif message["op"] == "finish":
            state = b"state" if message["writer"] == self.number else b""
            self.says += [Finished(self.number, state), Gone(self.number, "ended")]

    def _epoch(self, epoch):
        self.epoch = epoch
        first, last = split(self.plan.shards, self.members)[self.rank]
        for step in range(self.plan.steps_per_epoch):
            mine = range(first, min(last, self.plan.active_shards(step)))
            done = epoch * self.plan.steps_per_epoch + step
            self.says.append(Stepped(self.number, done, tuple(result(shard) for shard in mine)))
        self.says.append(AtBoundary(self.number, epoch))


def result(number):
    return BatchResult(number, 4, float(number), 2)


class Simulation:
    """A hub and its workers; `run` lets them talk in an order drawn from `seed`."""

    def __init__(self, course, seed, samples=37, test_batches=5):
        self.state = State(course)
        self.random = random.Random(seed)
        self.workers = {n: SimulatedWorker(n, samples, test_batches) for n in course.workers}
        self.actions = []

    def feed(self, event):
        self.state, actions = hub.step(self.state, event)
        self.actions += actions
        for action in actions:
            if isinstance(action, Send):
                self.workers[action.worker].heard(action.message)

    def run(self, most=10**6):
        for _ in range(most):
            talkative = [worker for worker in self.workers.values() if worker.says]
            if not talkative:
                return
            self.feed(self.random.choice(talkative).says.pop(0))

    def of(self, kind):
        return [action for action in self.actions if isinstance(action, kind)]


@given(
    workers=st.integers(1, 4),
    epochs=st.integers(1, 4),
    validation_freq=st.integers(0, 3),
    checkpoint_freq=st.integers(0, 3),
    samples=st.integers(1, 80),
    test_batches=st.integers(0, 9),
    test_chunk=st.integers(1, 4),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=300, deadline=None)
def test_every_order_of_events_leads_to_the_same_end(  # noqa: PLR0917
    workers, epochs, validation_freq, checkpoint_freq, samples, test_batches, test_chunk, seed
):
    what = course(
        workers, epochs, validation_freq=validation_freq, checkpoint_freq=checkpoint_freq, test_chunk=test_chunk
    )
    simulation = Simulation(what, seed, samples, test_batches)
    simulation.run()
    plan = Plan(samples, 4, 16, epochs, 1)

    assert simulation.of(Fail) == []
    assert simulation.of(End) == [End(b"state")]
    assert simulation.state.phase is Phase.ENDED
    assert simulation.of(Begin) == [Begin(plan)]
    commits = simulation.of(Commit)
    assert [(commit.epoch, commit.step) for commit in commits] == [
        (epoch, step) for epoch in range(epochs) for step in range(plan.steps_per_epoch)
    ]
    for commit in commits:
        assert [r.number for r in commit.results] == list(range(plan.active_shards(commit.step)))
    due = [epoch for epoch in range(epochs) if validation_freq and (epoch + 1) % validation_freq == 0]
    validations = simulation.of(Validated)
    assert [v.epoch for v in validations] == (due if test_batches else [])
    assert all([r.number for r in v.results] == list(range(test_batches)) for v in validations)
    every = checkpoint_freq or epochs
    saves = [(e, e == epochs) for e in range(1, epochs + 1) if e == epochs or e % every == 0]
    assert simulation.workers[1].saved == saves
    assert all(simulation.workers[n].saved == [] for n in range(2, workers + 1))


@given(seed=st.integers(0, 10**6), before=st.integers(0, 60), victim=st.integers(1, 3))
@settings(max_examples=200, deadline=None)
def test_a_death_at_any_instant_ends_the_job_once_and_says_who(seed, before, victim):
    simulation = Simulation(course(3), seed)
    simulation.run(before)
    finished = victim in simulation.state.finished or simulation.state.phase is Phase.ENDED
    simulation.feed(Gone(victim, "was killed by signal 9"))
    if not finished:
        assert simulation.of(Fail) == [Fail(f"worker {victim} was killed by signal 9")]
        assert simulation.state.phase is Phase.ENDED
        simulation.run()
        assert len(simulation.of(Fail)) == 1
        assert simulation.of(End) == []


@given(seed=st.integers(0, 10**6), before=st.integers(0, 60))
@settings(max_examples=100, deadline=None)
def test_committed_never_decreases_and_never_passes_what_all_reported(seed, before):
    simulation = Simulation(course(3), seed)
    reported = dict.fromkeys(simulation.workers, 0)
    committed = 0
    for _ in range(before):
        talkative = [worker for worker in simulation.workers.values() if worker.says]
        if not talkative:
            break
        event = simulation.random.choice(talkative).says.pop(0)
        if isinstance(event, Stepped):
            reported[event.worker] += 1
        simulation.feed(event)
        assert simulation.state.committed >= committed
        committed = simulation.state.committed
        assert committed == min(reported.values())


def test_an_exception_ends_the_job_with_its_cause():
    simulation = Simulation(course(2), 0)
    failed = Failed(2, "ValueError: boom", "Traceback ...", b"pickle")
    simulation.feed(failed)
    assert simulation.of(Fail) == [Fail("worker 2: ValueError: boom", failed)]


def test_an_exception_outranks_the_broken_group_of_its_peers():
    simulation = Simulation(course(2), 0)
    simulation.run(8)
    simulation.feed(Broken(1))
    simulation.feed(Failed(2, "ValueError: boom", ""))
    simulation.feed(Gone(1, "was killed by signal 9"))
    assert [fail.reason for fail in simulation.of(Fail)] == ["worker 2: ValueError: boom"]


@given(seed=st.integers(0, 10**6))
@settings(max_examples=50, deadline=None)
def test_one_worker_loads_its_data_alone_before_the_others(seed):
    simulation = Simulation(course(3), seed)
    loading = []
    while not simulation.of(Begin):
        event = simulation.random.choice([worker for worker in simulation.workers.values() if worker.says]).says.pop(0)
        ready = len(simulation.state.ready)
        loading = [send.worker for send in simulation.of(Send) if send.message["op"] == "load"]
        assert len(loading) <= (1 if ready == 0 else 3)
        simulation.feed(event)
    assert sorted(loading) == [1, 2, 3]


def test_data_sets_that_differ_are_refused():
    simulation = Simulation(course(2), 0)
    simulation.feed(Ready(1, 100, 5))
    simulation.feed(Ready(2, 90, 5))
    (fail,) = simulation.of(Fail)
    assert "worker 1 has 100 training samples" in fail.reason
    assert "worker 2 has 90" in fail.reason


@pytest.mark.parametrize("event", [Stepped(1, 0, ()), TaskDone(1), Finished(1), AtBoundary(1, 0)])
def test_what_makes_no_sense_ends_the_job_instead_of_corrupting_it(event):
    simulation = Simulation(course(2), 0)
    simulation.feed(event)
    assert len(simulation.of(Fail)) == 1
    assert simulation.of(Commit) == []


def test_means_are_over_samples():
    results = (BatchResult(0, 30, 1.0, 30, {"f": 2.0}), BatchResult(1, 10, 5.0, 0, {"f": 6.0}))
    assert events.mean_loss(results) == 2.0
    assert events.accuracy(results) == 0.75
    assert events.mean_metrics(results) == {"f": 3.0}
    assert events.accuracy((BatchResult(0, 1, 0.5, None),)) is None


def test_a_state_is_never_changed_in_place():
    simulation = Simulation(course(2), 3)
    simulation.run(6)
    before = simulation.state
    copy = repr(before)
    simulation.run()
    assert repr(before) == copy
    assert simulation.state.phase is Phase.ENDED
