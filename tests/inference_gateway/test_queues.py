"""Queues of models: batches, deadlines, retries, weights. The time is the test's."""

from __future__ import annotations

from typing import Any

import pytest
from fake_models import Answer, World, batches
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support import examples

from local_backend.inference.control import Revision
from local_backend.inference.gateway.refusal import Refused
from local_backend.inference.gateway.tasks import KernelSeat, QueuedRequest
from local_backend.inference.kernel import frames


def revision(number: int, state: Any = "serving", weight: int = 100, why: str = "") -> Revision:
    return Revision(number, f"exec-{number}", f"key-{number}", state, weight, why)


def code(answer: Answer) -> str:
    assert answer.refusal is not None
    return answer.refusal.code


def refused(world: World, **more: Any) -> Refused:
    with pytest.raises(Refused) as raised:
        world.submit(**more)
    return raised.value


def test_a_kernel_gets_as_many_requests_as_a_batch_holds() -> None:
    world = World(batch_size=3)
    seat = world.kernel()
    for number in range(5):
        world.submit(b"%d" % number)
    assert batches(seat) == [[b"0"]]
    (first,) = seat.tasks
    world.reply(seat, first)
    assert batches(seat) == [[b"0"], [b"1", b"2", b"3"]]


def test_a_batch_waits_for_more_requests_at_most_for_the_delay() -> None:
    world = World(batch_size=3, batch_delay=1.0)
    seat = world.kernel()
    world.submit(b"0")
    world.pass_time(0.5)
    world.submit(b"1")
    assert batches(seat) == []
    world.pass_time(0.6)
    assert batches(seat) == [[b"0", b"1"]]


def test_a_full_batch_does_not_wait() -> None:
    world = World(batch_size=2, batch_delay=1.0)
    seat = world.kernel()
    world.submit(b"0")
    world.submit(b"1")
    assert batches(seat) == [[b"0", b"1"]]


@pytest.mark.parametrize(("pipe", "parallel", "expected"), [(1, 1, 1), (3, 1, 3), (1, 4, 4), (2, 4, 5)])
def test_a_kernel_gets_batches_ahead(pipe: int, parallel: int, expected: int) -> None:
    world = World(pipe_size=pipe, parallel_size=parallel)
    seat = world.kernel()
    for _ in range(9):
        world.submit()
    assert len(batches(seat)) == expected


def test_tasks_without_an_answer_do_not_keep_their_kernel() -> None:
    world = World(execution_timeout=5.0)
    seat = world.kernel()
    first, swallowed = world.submit(b"0")
    _, late = world.submit(b"1")
    queue: Any = seat.queue
    queue.unanswered(seat, [first.id], world.now)
    assert batches(seat) == [[b"0"], [b"1"]]
    (second,) = seat.tasks.keys() - {first.id}
    queue.unanswered(seat, [second], world.now)
    assert world.reply(seat, second, b"late")
    world.pass_time(6.0)
    peer: Any = seat.peer
    assert (late.parts, code(swallowed), peer.is_killed) == ([b"late"], "inference.timeout", False)
    assert (queue.running, world.reply(seat, first.id)) == (0, False)
    assert (seat.finished, seat.failed) == (1, 1)


def test_requests_go_to_the_kernel_with_the_fewest_batches() -> None:
    world = World(pipe_size=2)
    seats = [world.kernel(), world.kernel()]
    for _ in range(4):
        world.submit()
    assert [len(batches(seat)) for seat in seats] == [2, 2]


def test_a_request_without_a_kernel_in_time_is_refused_with_the_reason() -> None:
    world = World(execution_timeout=5.0)
    world.revise(revision(1, "serving", why="it waits for a slot"))
    _, answer = world.submit()
    world.pass_time(4.9)
    assert not answer.is_over
    world.pass_time(0.2)
    assert code(answer) == "inference.not_ready"
    assert answer.refusal is not None
    assert (answer.refusal.status, "it waits for a slot" in answer.refusal.sentence) == (503, True)


def test_a_deadline_of_the_client_ends_a_request_and_cancels_its_task() -> None:
    world = World()
    seat = world.kernel()
    request, answer = world.submit(timeout=1.0)
    _, waiting = world.submit(timeout=1.0)
    world.pass_time(1.1)
    assert (code(answer), code(waiting)) == ("inference.timeout", "inference.timeout")
    peer: Any = seat.peer
    assert (peer.cancelled, peer.is_killed) == ([request.id], False)
    assert world.reply(seat, request.id)
    assert not world.models.open


def test_a_kernel_that_hangs_is_killed_and_its_other_requests_go_to_another() -> None:
    world = World(execution_timeout=5.0, pipe_size=2)
    seat = world.kernel()
    _, stuck = world.submit()
    world.pass_time(3.0)
    _, behind = world.submit(b"behind")
    world.pass_time(2.5)
    peer: Any = seat.peer
    assert (peer.is_killed, code(stuck), behind.is_over) == (True, "inference.timeout", False)
    other = world.kernel()
    assert batches(other) == [[b"behind"]]


def test_a_kernel_that_hangs_is_killed_when_nobody_waits_for_it() -> None:
    world = World(execution_timeout=5.0)
    seat = world.kernel()
    _, stuck = world.submit()
    world.run_timer(6.0)
    peer: Any = seat.peer
    assert (code(stuck), peer.is_killed, seat in world.models.models["m"].queues[1].kernels) == (
        "inference.timeout", True, False)


def test_a_request_after_one_that_expired_expires_too() -> None:
    world = World(execution_timeout=5.0)
    world.submit(timeout=0.05)
    world.run_timer(0.2)
    _, later = world.submit()
    world.run_timer(6.0)
    assert code(later) in ("inference.timeout", "inference.not_ready")


def test_the_requests_of_a_dead_kernel_go_to_another_one_in_their_order() -> None:
    world = World(batch_size=2)
    seat = world.kernel()
    for number in range(4):
        world.submit(b"%d" % number)
    world.reply(seat, next(iter(seat.tasks)))
    world.models.lost(seat, world.now)
    other = world.kernel()
    assert batches(other) == [[b"1", b"2"]]


def test_a_request_is_tried_twice_at_most() -> None:
    world = World()
    _, answer = world.submit()
    for _ in range(2):
        world.models.lost(world.kernel(), world.now)
    assert code(answer) == "inference.kernel_died"


def test_a_model_may_turn_the_second_try_off() -> None:
    world = World(retry=False)
    _, answer = world.submit()
    world.models.lost(world.kernel(), world.now)
    assert code(answer) == "inference.kernel_died"


def test_an_answer_that_has_begun_has_no_second_try() -> None:
    world = World()
    seat = world.kernel()
    request, answer = world.submit()
    world.reply(seat, request.id, b"a", frames.MORE)
    world.models.lost(seat, world.now)
    assert (answer.parts, code(answer)) == ([b"a"], "inference.kernel_died")


def test_a_stream_that_advances_does_not_hang() -> None:
    world = World(execution_timeout=5.0)
    seat = world.kernel()
    request, answer = world.submit()
    for _ in range(4):
        world.pass_time(4.0)
        world.reply(seat, request.id, b"a", frames.MORE)
    world.reply(seat, request.id, b"", 0)
    peer: Any = seat.peer
    assert (answer.parts, answer.refusal, peer.is_killed) == ([b"a"] * 4 + [b""], None, False)


def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    world = World(queue_size=2)
    world.submit()
    world.submit()
    why = refused(world)
    assert (why.code, why.status, bool(why.retry_after)) == ("inference.queue_full", 429, True)


def test_a_stopped_model_and_one_that_cannot_start_refuse() -> None:
    world = World()
    _, answer = world.submit()
    world.revise(revision(1, "failed", why="no file kernel.py"))
    assert (refused(world).code, code(answer)) == ("inference.cannot_start", "inference.cannot_start")
    assert "no file kernel.py" in refused(world).sentence
    world.revise()
    assert refused(world).code == "inference.stopped"


def test_weights_split_requests_evenly_in_turns() -> None:
    world = World()
    world.revise(revision(1, weight=75), revision(2, weight=25))
    chosen = []
    for _ in range(8):
        request, _ = world.submit()
        queue: Any = request.queue
        chosen.append(queue.revision.number)
    assert (chosen.count(1), chosen[:4].count(2), chosen[4:].count(2)) == (6, 1, 1)


def test_a_revision_that_starts_gets_requests_once_it_has_a_kernel() -> None:
    world = World()
    first = world.kernel()
    world.revise(revision(1, weight=1), revision(2, "starting", weight=99))
    request, _ = world.submit()
    assert request.id in first.tasks
    second = world.kernel(2)
    for _ in range(3):
        world.submit()
    assert second.tasks


def test_a_draining_revision_answers_what_it_has_and_gets_no_more() -> None:
    world = World()
    first = world.kernel()
    _, running = world.submit(b"0")
    _, waiting = world.submit(b"1")
    world.revise(revision(1, "draining"), revision(2))
    second = world.kernel(2)
    world.submit(b"2")
    assert batches(second) == [[b"2"]]
    world.reply(first, next(iter(first.tasks)))
    world.reply(first, next(iter(first.tasks)))
    assert (running.parts, waiting.parts) == ([b"ok"], [b"ok"])


def test_requests_of_a_draining_revision_without_kernels_go_to_another() -> None:
    world = World()
    first = world.kernel()
    for number in range(3):
        world.submit(b"%d" % number)
    world.revise(revision(1, "draining"), revision(2))
    world.models.lost(first, world.now)
    second = world.kernel(2)
    for _ in range(3):
        world.reply(second, next(iter(second.tasks)))
    assert batches(second) == [[b"0"], [b"1"], [b"2"]]


def test_a_revision_that_is_gone_finishes_its_requests() -> None:
    world = World()
    first = world.kernel()
    _, running = world.submit()
    world.revise(revision(2))
    world.reply(first, next(iter(first.tasks)))
    assert running.parts == [b"ok"]
    world.models.lost(first, world.now)
    assert [queue.revision.number for queue in world.models.queues()] == [2]


def test_a_client_chooses_a_revision_that_has_no_weight() -> None:
    world = World()
    world.revise(revision(1), revision(2, weight=0))
    second = world.kernel(2)
    world.submit(pinned=2)
    assert second.tasks
    assert refused(world, pinned=3).code == "inference.no_revision"


def test_a_request_that_nobody_waits_for_leaves_the_queue() -> None:
    world = World()
    gone, answer = world.submit(b"gone")
    world.submit(b"stays")
    world.models.withdraw(gone)
    assert (batches(world.kernel()), answer.is_over) == ([[b"stays"]], False)


def test_the_load_says_at_once_that_requests_wait() -> None:
    world = World()
    world.waits.clear()
    world.submit()
    assert True in world.waits
    load = world.models.load(0.0, world.now + 2.0).loads["m"][1]
    assert (load.queued, load.running, load.oldest, load.arrived) == (1, 0, 2.0, 1)


def test_a_queue_that_grows_is_reported_without_kernels() -> None:
    world = World()
    world.submit()
    world.waits.clear()
    world.submit()
    assert world.waits == [False]
    assert world.models.load(0.0, world.now).loads["m"][1].queued == 2


@settings(max_examples=examples(300))
@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(1, 300))
def test_weights_hold_after_any_number_of_requests(weights: list[int], count: int) -> None:
    """Each revision is at most 1 request away from its part times the number of revisions."""
    world = World()
    world.revise(*(revision(number, weight=weight) for number, weight in enumerate(weights, 1)))
    chosen = [0] * len(weights)
    for _ in range(count):
        chosen[world.models.models["m"].pick().revision.number - 1] += 1
    for got, weight in zip(chosen, weights, strict=True):
        assert abs(got - count * weight / sum(weights)) <= len(weights)


class Churn(RuleBasedStateMachine):
    """Requests, kernels and states in any order: each request gets exactly one answer, none is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(batch_size=2, pipe_size=2, execution_timeout=10.0, queue_size=20)
        self.world.revise(revision(1), revision(2, weight=50))
        self.asked: list[tuple[QueuedRequest, Answer]] = []
        self.withdrawn: set[int] = set()

    def alive(self) -> list[KernelSeat]:
        return [seat for seat in self.world.kernels
                if any(seat in queue.kernels for queue in self.world.models.queues())]

    @rule(pinned=st.sampled_from([None, None, 1, 2]), timeout=st.sampled_from([None, 1.0, 30.0]))
    def ask(self, pinned: int | None, timeout: float | None) -> None:
        try:
            self.asked.append(self.world.submit(b"%d" % len(self.asked), pinned=pinned, timeout=timeout))
        except Refused:
            pass

    @rule(number=st.sampled_from([1, 2]), ready=st.booleans())
    def connect(self, number: int, ready: bool) -> None:
        if self.world.models.queue_of_key(f"key-{number}") is not None:
            self.world.kernel(number, ready=ready)

    @precondition(lambda self: self.alive())
    @rule(data=st.data(), flags=st.sampled_from([0, 0, 0, frames.MORE, frames.FAILED]))
    def reply(self, data: st.DataObject, flags: int) -> None:
        seat = data.draw(st.sampled_from(self.alive()))
        if seat.tasks:
            number = data.draw(st.sampled_from(sorted(seat.tasks)))
            assert self.world.reply(seat, number, seat.tasks[number].body, flags)
            assert not self.world.reply(seat, 10**9)

    @precondition(lambda self: self.alive())
    @rule(data=st.data(), how=st.sampled_from(["die", "leave", "ready"]))
    def change_kernel(self, data: st.DataObject, how: str) -> None:
        seat = data.draw(st.sampled_from(self.alive()))
        queue: Any = seat.queue
        if how == "die":
            self.world.models.lost(seat, self.world.now)
        elif how == "leave":
            queue.set_leaving(seat)
        else:
            queue.set_ready(seat, self.world.now)

    @precondition(lambda self: self.alive())
    @rule(data=st.data())
    def swallow(self, data: st.DataObject) -> None:
        seat = data.draw(st.sampled_from(self.alive()))
        queue: Any = seat.queue
        queue.unanswered(seat, [*[*seat.tasks][:2], 10**9], self.world.now)

    @rule(states=st.lists(st.sampled_from(["starting", "serving", "draining", "failed", "gone"]), min_size=2,
                          max_size=2))
    def revise(self, states: list[str]) -> None:
        self.world.revise(*(revision(number, state) for number, state in enumerate(states, 1) if state != "gone"))

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        request, answer = data.draw(st.sampled_from(self.asked))
        if not answer.is_over:
            self.withdrawn.add(request.id)
        self.world.models.withdraw(request)

    @rule(seconds=st.sampled_from([0.01, 0.3, 3.0, 12.0]))
    def wait(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @invariant()
    def each_request_is_in_one_place(self) -> None:
        places: dict[int, int] = {}
        for queue in self.world.models.queues():
            for number in queue.waiting:
                places[number] = places.get(number, 0) + 1
            for seat in queue.kernels:
                for number, request in seat.tasks.items():
                    if request.sink is not None:
                        places[number] = places.get(number, 0) + 1
            assert list(queue.waiting) == sorted(queue.waiting), "the order of arrival"
            assert queue.running == sum(len(seat.tasks) for seat in queue.kernels)
            for seat in queue.kernels:
                counted = [request.batch for request in seat.tasks.values() if request.batch in seat.batches]
                assert all(batch.left == counted.count(batch) > 0 for batch in seat.batches)
            assert queue.ready == sum(seat.ready and not seat.leaving for seat in queue.kernels)
        for request, answer in self.asked:
            is_open = not answer.is_over and request.id not in self.withdrawn
            assert places.get(request.id, 0) == is_open
            assert (request in self.world.models.open) == is_open

    @invariant()
    def answers_are_those_of_the_requests(self) -> None:
        for request, answer in self.asked:
            assert set(answer.parts) <= {request.body}

    def teardown(self) -> None:
        """All requests end: kernels answer, or the time does."""
        self.world.revise(revision(1), revision(2))
        self.world.pass_time(100.0)
        for request, answer in self.asked:
            assert answer.is_over or request.id in self.withdrawn
        assert not self.world.models.open


Churn.TestCase.settings = settings(max_examples=examples(500), stateful_step_count=40)
TestChurn = Churn.TestCase


def test_a_kernel_gets_its_next_batch_before_the_answers_of_the_last_one_are_passed_on() -> None:
    world = World(batch_size=2, batch_delay=1.0)
    seat = world.kernel()
    answers = [world.submit(b"%d" % number)[1] for number in range(4)]
    queue: Any = seat.queue
    for number in list(seat.tasks):
        queue.replied(seat, number, 0, b"ok", b"", now=world.now)
    assert batches(seat) == [[b"0", b"1"], [b"2", b"3"]]
    assert [one.parts for one in answers] == [[], [], [], []]
    queue.pass_on()
    assert [one.parts for one in answers] == [[b"ok"], [b"ok"], [], []]
