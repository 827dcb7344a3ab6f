"""The detection of hung workers, with a simulated clock. test_hub.py tests that jobs with hangs end."""

from dataclasses import replace

import pytest

from local_backend.elastic.hub import hub
from local_backend.elastic.hub.events import Entered, Gone, Hung, Impatient, Kill, Send, Stepped
from local_backend.elastic.hub.liveness import (
    ANSWER,
    CONNECTING,
    GATHERING,
    LEAVING,
    LOADS,
    PATIENCE,
    UNKNOWN,
    Liveness,
)
from local_backend.elastic.hub.membership import Generation, Peer, Stage
from local_backend.elastic.hub.state import Phase
from local_backend.elastic.plan import StepPlan

MINIMUM = 5.0


class Watch:
    """A hub's state, a Liveness that watches it, and a clock that stops at every time of a check."""

    def __init__(self, *stages, phase=Phase.TRAINING, shards=8, minimum=MINIMUM):
        """Put workers 1, 2, ... into these stages; workers in stage MEMBER form generation 1."""
        begun = hub.begin(hub.Course(8, 2, 1, shards, 0, 0, 0))
        peers = {i + 1: Peer(f"slot-{i}", stage) for i, stage in enumerate(stages)}
        members = tuple(worker for worker, peer in peers.items() if peer.stage is Stage.MEMBER)
        counts = (shards // len(members),) * len(members) if members else ()
        crew = replace(begun.crew, peers=peers, active=Generation(1, members, counts))
        self.state = replace(begun, crew=crew, phase=phase, plan=StepPlan(1000, 1, shards, 2, 0))
        self.now = 1000.0
        self.liveness = Liveness(minimum)
        #: Worker → the phase that it reports in reply to a ping; other workers do not reply.
        self.phases = {}
        self.pinged = []
        self.liveness.check(self.state, self.now)

    def crew(self, **changes):
        self.state = replace(self.state, crew=replace(self.state.crew, **changes))

    def put(self, *workers, stage):
        self.state = replace(self.state, crew=self.state.crew.put(workers, stage=stage))

    def step(self, seconds=1.0, workers=None):
        """Let members compute a step, and commit the step before."""
        self.now += seconds
        for worker in workers or self.state.members:
            self.liveness.heard(Stepped(worker, self.state.committed + 1, ()), self.now)
        if workers is None:
            self.state = replace(self.state, committed=self.state.committed + 1)
        return self.look()

    def look(self):
        found = self.liveness.check(self.state, self.now)
        for send in [one for one in found if isinstance(one, Send)]:
            found.remove(send)
            assert send.message == {"op": "ping"}
            self.pinged.append(send.worker)
            if send.worker in self.phases:
                self.liveness.ponged(send.worker, self.phases[send.worker], self.now)
        return found

    def wait(self, seconds):
        """Let time pass without messages; return (seconds from now, worker or event) of all consequences."""
        start, found = self.now, []
        while (due := self.liveness.due(self.now)) is not None and due <= start + seconds:
            self.now = due
            for one in self.look():
                found.append((round(self.now - start, 3), getattr(one, "worker", one)))
                if isinstance(one, Hung):
                    self.liveness.heard(Gone(one.worker, "was killed"), self.now)
                    peers = {w: peer for w, peer in self.state.crew.peers.items() if w != one.worker}
                    active = self.state.crew.active
                    active = replace(active, members=tuple(w for w in active.members if w != one.worker))
                    self.crew(peers=peers, active=active, entering=self.state.crew.entering - {one.worker})
        self.now = start + seconds
        return found


def trained(members=3, steps=10, seconds=1.0):
    """Return a watch over members that have trained for some steps."""
    watch = Watch(*[Stage.MEMBER] * members, shards=6)
    for _ in range(steps):
        assert watch.step(seconds) == []
    return watch


# --- training


def test_a_member_that_misses_a_step_of_the_others_hangs():
    watch = trained()
    watch.step(workers=(1, 3))
    assert watch.wait(PATIENCE - 0.1) == []
    assert watch.wait(0.2) == [(0.1, 2)]


def test_members_that_are_not_behind_are_not_pinged():
    watch = trained()
    watch.step(workers=(1, 3))
    watch.wait(PATIENCE)
    assert set(watch.pinged) == {2}


def test_of_several_members_behind_the_silent_one_hangs():
    watch = trained(4)
    watch.step(workers=(1,))
    watch.phases = {2: "computing", 4: "computing"}
    assert [worker for _, worker in watch.wait(PATIENCE)] == [3]


def test_of_several_members_behind_that_reply_one_hangs():
    watch = trained(4)
    watch.step(workers=(1,))
    watch.phases = {2: "computing", 3: "computing", 4: "computing"}
    assert len(watch.wait(PATIENCE)) == 1


def test_short_steps_do_not_shorten_the_patience_below_the_minimum():
    watch = trained(seconds=0.01)
    watch.step(0.01, workers=(1, 3))
    assert watch.wait(MINIMUM - 0.1) == []
    assert watch.wait(0.2) == [(0.1, 2)]


def test_the_first_steps_may_take_long():
    watch = trained(steps=2)
    watch.step(workers=(1, 3))
    assert watch.wait(UNKNOWN - 0.1) == []
    assert watch.wait(0.2) == [(0.1, 2)]


def test_progress_resets_the_patience():
    watch = trained()
    for _ in range(10):
        watch.phases = dict.fromkeys((1, 2, 3), "computing")
        assert watch.step(PATIENCE * 0.9) == []


def test_a_member_that_does_not_reply_inside_a_sum_hangs():
    watch = trained(4)
    watch.phases = {1: "waiting", 3: "waiting", 4: "computing"}
    assert watch.wait(PATIENCE / 2 - 0.1) == []
    assert watch.pinged == []
    assert watch.wait(PATIENCE / 2 + 0.2) == [(PATIENCE / 2 + 0.1, 2)]
    assert watch.pinged == [1, 2, 3, 4]


@pytest.mark.parametrize("phase", ["computing", "applying", "loading"])
def test_if_all_members_reply_the_one_that_does_not_wait_hangs(phase):
    watch = trained()
    watch.phases = {1: "waiting", 2: phase, 3: "waiting"}
    assert [worker for _, worker in watch.wait(PATIENCE)] == [2]


def test_if_all_members_wait_the_one_silent_longest_hangs():
    watch = trained()
    watch.phases = dict.fromkeys((1, 2, 3), "waiting")
    watch.liveness.heard(Stepped(2, watch.state.committed, ()), watch.now - 0.5)
    watch.liveness.heard(Stepped(1, watch.state.committed, ()), watch.now)
    assert [worker for _, worker in watch.wait(PATIENCE)] == [2]


def test_members_that_are_all_slow_do_not_hang():
    watch = trained()
    watch.phases = dict.fromkeys((1, 2, 3), "computing")
    assert watch.wait(100 * PATIENCE) == []


def test_a_single_worker_is_never_too_slow_but_must_reply():
    watch = trained(1)
    watch.phases = {1: "computing"}
    assert watch.wait(100 * PATIENCE) == []
    watch.phases = {}
    assert watch.wait(ANSWER) == []
    assert [worker for _, worker in watch.wait(3 * ANSWER)] == [1]


def test_callbacks_may_take_forever():
    watch = trained()
    watch.phases = {1: "waiting", 2: "callbacks", 3: "waiting"}
    assert watch.wait(100 * PATIENCE) == []


def test_members_that_wait_at_the_boundary_do_not_hang():
    watch = trained()
    watch.state = replace(watch.state, idle=frozenset({1, 3}))
    assert [worker for _, worker in watch.wait(PATIENCE)] == [2]
    assert watch.pinged == [2]


def test_a_step_with_more_shards_per_member_may_take_longer():
    watch = trained(6)
    watch.crew(active=Generation(2, (1, 2), (3, 3)), shards=3)
    watch.phases = {2: "waiting"}
    watch.look()
    assert watch.wait(3 * PATIENCE - 0.1) == []
    assert [worker for _, worker in watch.wait(0.2)] == [1]


def test_a_called_new_worker_that_does_not_enter_hangs():
    watch = Watch(Stage.MEMBER, Stage.MEMBER, Stage.READY, shards=6)
    for _ in range(10):
        watch.step()
    watch.crew(pending=Generation(2, (1, 2, 3), (2, 2, 2)), formed=frozenset({1, 2, 3}), confirmed=True)
    watch.phases = {1: "entering", 2: "entering"}
    assert [worker for _, worker in watch.wait(PATIENCE)] == [3]


# --- entering


def entering():
    watch = trained()
    watch.crew(active=Generation(2, (1, 2, 3), (2, 2, 2)), entering=frozenset({1, 2, 3}))
    watch.look()
    watch.liveness.heard(Entered(1, 2, 10), watch.now)
    watch.crew(entering=frozenset({2, 3}))
    watch.look()
    return watch


def test_a_member_that_neither_enters_nor_replies_hangs():
    watch = entering()
    watch.phases = {2: "entering"}
    assert watch.wait(ANSWER - 0.1) == []
    assert watch.wait(0.2) == [(0.1, 3)]


@pytest.mark.parametrize("phase", ["computing", "callbacks"])
def test_a_member_that_finishes_work_before_it_enters_does_not_hang(phase):
    watch = entering()
    watch.phases = {2: "entering", 3: phase}
    assert watch.wait(100 * ANSWER) == []


def test_a_large_state_may_take_a_while_but_not_forever():
    watch = entering()
    watch.phases = {2: "entering", 3: "entering"}
    assert watch.wait(UNKNOWN - 1) == []
    assert len(watch.wait(ANSWER / 2)) == 1


# --- user code


@pytest.mark.parametrize("phase", [Phase.BOUNDARY, Phase.FINISHING])
def test_between_epochs_only_a_silent_member_hangs(phase):
    watch = trained()
    watch.state = replace(watch.state, phase=phase)
    watch.phases = {1: "callbacks", 3: "computing"}
    watch.look()
    found = watch.wait(100 * ANSWER)
    assert [worker for _, worker in found] == [2]
    assert ANSWER <= found[0][0] <= 2 * ANSWER


def test_a_silent_new_worker_does_not_block_the_next_generation():
    watch = Watch(Stage.MEMBER, Stage.READY, shards=6)
    watch.crew(pending=Generation(2, (1, 2), (3, 3)), formed=frozenset({1}))
    watch.phases = {1: "computing"}
    assert [worker for _, worker in watch.wait(3 * ANSWER)] == [2]


def test_loading_may_take_long_but_not_without_a_reply():
    watch = Watch(Stage.LOADING, phase=Phase.GATHERING)
    watch.phases = {1: "loading"}
    assert watch.wait(10 * UNKNOWN) == []
    watch.phases = {}
    assert [worker for _, worker in watch.wait(2 * UNKNOWN)] == [1]


def test_the_keeper_of_the_state_must_reply():
    watch = Watch(Stage.LEAVING)
    watch.state = replace(watch.state, parking=(1,))
    watch.phases = {1: "waiting"}
    assert watch.wait(10 * ANSWER) == []
    watch.phases = {}
    assert [worker for _, worker in watch.wait(3 * ANSWER)] == [1]


# --- start and end of workers


def test_a_process_that_does_not_connect_hangs():
    watch = Watch(Stage.STARTING, phase=Phase.GATHERING)
    assert watch.wait(CONNECTING) == [(CONNECTING, 1)]


def test_a_process_that_does_not_end_is_killed_repeatedly():
    watch = Watch(Stage.LEAVING)
    found = []
    while len(found) < 3:
        watch.now = watch.liveness.due(watch.now)
        found += watch.look()
    assert found == [Kill(1)] * 3
    assert watch.now == 1000.0 + 3 * LEAVING


def test_parked_workers_are_not_killed_before_they_are_released():
    watch = Watch(Stage.LEAVING)
    watch.phases = {1: "waiting"}
    watch.state = replace(watch.state, parking=(1,))
    assert watch.wait(5 * LEAVING) == []
    watch.look()
    watch.state = replace(watch.state, parking=())
    watch.look()
    assert watch.wait(LEAVING - 0.1) == []
    assert watch.wait(0.2) == [(0.1, 1)]


@pytest.mark.parametrize(("took", "patience"), [(1.0, GATHERING), (10.0, LOADS * 10.0)])
def test_the_first_generation_does_not_wait_long_for_the_last_worker(took, patience):
    watch = Watch(Stage.LOADING, Stage.WAITING, phase=Phase.GATHERING)
    watch.now += took
    watch.put(1, stage=Stage.READY)
    watch.put(2, stage=Stage.LOADING)
    watch.phases = {1: "waiting", 2: "loading"}
    assert watch.look() == []
    assert watch.wait(patience - 0.1) == []
    assert watch.wait(0.2)[0] == (0.1, Impatient())


def test_the_first_generation_waits_if_no_worker_is_ready():
    watch = Watch(Stage.LOADING, phase=Phase.GATHERING)
    watch.phases = {1: "loading"}
    assert watch.wait(20 * GATHERING) == []


# --- the hub itself


def test_a_delay_of_the_hub_does_not_accuse_a_worker():
    watch = trained()
    watch.step(workers=(1, 3))
    watch.now += 2 * PATIENCE
    assert watch.look() == []
    assert watch.wait(PATIENCE - 0.1) == []
    assert watch.wait(0.2) == [(0.1, 2)]


def test_a_reported_delay_of_the_hub_resets_the_patience():
    watch = trained()
    watch.step(workers=(1, 3))
    watch.wait(PATIENCE - 0.1)
    watch.liveness.resumed(watch.now)
    assert watch.wait(PATIENCE - 0.1) == []
    assert watch.wait(0.2) == [(0.1, 2)]


def test_a_worker_that_was_pinged_late_has_time_to_reply():
    watch = trained(seconds=0.01)
    watch.step(0.01, workers=(1, 3))
    watch.now += MINIMUM - 0.1
    assert watch.look() == []
    assert watch.pinged == [2]
    assert watch.wait(MINIMUM / 4 - 0.1) == []
    assert watch.wait(0.2) == [(0.1, 2)]


def test_no_worker_is_watched_after_the_job_has_ended():
    watch = trained()
    watch.state = replace(watch.state, phase=Phase.ENDED)
    assert watch.look() == []
    assert watch.liveness.due(watch.now) is None
