"""Background loops: due times, wake-ups, descriptors, errors and stopping."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from typing import Any

import pytest
from support import PATIENCE, eventually

from local_backend.runtime.loop import Backoff, Loop, LoopEnd, Turn

FAST = {"first": 0.001, "longest": 0.002}


@pytest.fixture
def make() -> Iterator[Callable[..., Loop]]:
    """A function that creates and starts a loop. The loops are stopped after the test."""
    made: list[Loop] = []

    def start(turn: Turn, **more: Any) -> Loop:
        made.append(Loop("test", turn, **more))
        made[-1].start()
        return made[-1]

    yield start
    for loop in made:
        loop.stop()


class Turns:
    """A turn that records its calls and returns or raises the given values. The last value repeats."""

    def __init__(self, *results: float | Exception | None) -> None:
        self.results = list(results)
        self.calls: queue.SimpleQueue[Set[int]] = queue.SimpleQueue()

    def __call__(self, ready: Set[int]) -> float | None:
        result = self.results.pop(0) if len(self.results) > 1 else self.results[0]
        self.calls.put(ready)
        if isinstance(result, Exception):
            raise result
        return result

    def next(self) -> Set[int]:
        return self.calls.get(timeout=PATIENCE)

    def none(self) -> bool:
        """Return whether no further turn has begun."""
        return self.calls.empty()


def test_a_turn_runs_at_the_start_when_due_and_after_a_wake(make: Callable[..., Loop]) -> None:
    turns = Turns(0.0, 0.0, None)
    loop = make(turns)
    for _ in range(3):
        assert turns.next() == set()
    assert loop.completes_turn(PATIENCE) and turns.next() == set()
    loop.stop()
    assert turns.none() and not loop.alive


def test_a_wake_during_a_turn_is_not_lost(make: Callable[..., Loop]) -> None:
    begun, go = threading.Event(), threading.Event()
    calls: queue.SimpleQueue[int] = queue.SimpleQueue()

    def turn(_ready: Set[int]) -> None:
        calls.put(1)
        begun.set()
        go.wait(PATIENCE)

    loop = make(turn)
    assert begun.wait(PATIENCE) and loop.busy > 0
    loop.wake()
    go.set()
    for _ in range(2):
        calls.get(timeout=PATIENCE)


def test_a_readable_descriptor_begins_a_turn(make: Callable[..., Loop]) -> None:
    reader, writer = os.pipe()
    seen: queue.SimpleQueue[Set[int]] = queue.SimpleQueue()

    def turn(ready: Set[int]) -> None:
        for fd in ready:
            os.read(fd, 10)
        seen.put(ready)

    loop = make(turn, descriptors=lambda: [reader])
    assert seen.get(timeout=PATIENCE) == set()
    os.write(writer, b"x")
    assert seen.get(timeout=PATIENCE) == {reader}
    loop.stop()
    os.close(reader)
    os.close(writer)


def test_an_error_is_logged_once_and_the_turn_is_repeated(
    make: Callable[..., Loop], caplog: pytest.LogCaptureFixture
) -> None:
    turns = Turns(OSError("full"), OSError("full"), OSError("gone"), ZeroDivisionError("x"), None)
    loop = make(turns, backoff=Backoff(**FAST))
    for _ in range(5):
        turns.next()
    assert loop.completes_turn(PATIENCE) and loop.failures == 0
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [bool(record.exc_info) for record in errors] == [False, False, True]
    assert all("test" in record.getMessage() for record in errors)
    assert [record.levelno for record in caplog.records][-1] == logging.WARNING


def test_failures_of_a_loop_are_counted_and_a_wake_ends_its_pause(make: Callable[..., Loop]) -> None:
    turns = Turns(OSError("full"), None)
    loop = make(turns, backoff=Backoff(first=3600.0, longest=3600.0))
    turns.next()
    assert loop.completes_turn(PATIENCE)  # The pause of 1 hour is longer than the timeout of this test.
    assert loop.failures == 0

    failing = make(Turns(OSError("full")), backoff=Backoff(first=3600.0, longest=3600.0))
    assert not failing.completes_turn(0.01)
    eventually(lambda: failing.failures, "the failure is counted")
    assert failing.alive


def test_a_loop_that_fails_or_waits_stops_at_once(make: Callable[..., Loop]) -> None:
    for turns in (Turns(OSError("full")), Turns(None)):
        loop = make(turns, backoff=Backoff(first=3600.0, longest=3600.0))
        turns.next()
        loop.stop()
        loop.stop()
        loop.wake()
        assert not loop.alive


def test_a_turn_can_end_its_loop(make: Callable[..., Loop]) -> None:
    loop = make(Turns(LoopEnd()))
    eventually(lambda: not loop.alive, "the loop ends")


def test_a_pause_in_a_turn_ends_with_the_loop() -> None:
    begun = threading.Event()
    loop: Loop

    def turn(_ready: Set[int]) -> None:
        begun.set()
        while True:
            loop.pause(0.001)

    loop = Loop("test", turn)
    loop.start()
    assert begun.wait(PATIENCE)
    loop.stop()
    assert not loop.alive


def test_a_session_lasts_until_an_error_or_the_end(make: Callable[..., Loop]) -> None:
    told: queue.SimpleQueue[str] = queue.SimpleQueue()

    @contextmanager
    def session() -> Iterator[None]:
        told.put("open")
        try:
            yield
        finally:
            told.put("close")

    turns = Turns(0.0, OSError("lost"), 0.0, None)
    loop = make(turns, session=session, backoff=Backoff(**FAST))
    for _ in range(4):
        turns.next()
    loop.stop()
    assert [told.get(timeout=PATIENCE) for _ in range(4)] == ["open", "close", "open", "close"]


def test_a_loop_that_never_started_can_be_woken_and_stopped() -> None:
    loop = Loop("test", lambda ready: None)
    loop.wake()
    assert not loop.completes_turn(0.0) and not loop.alive and loop.busy == 0
    loop.stop()
    loop.wake()


def test_pauses_grow_to_a_limit() -> None:
    backoff, pauses = Backoff(first=1.0, longest=5.0), []
    for _ in range(2000):
        backoff.failed(OSError())
        pauses.append(backoff.pause)
    assert pauses[:5] == [1.0, 2.0, 4.0, 5.0, 5.0] and set(pauses[5:]) == {5.0}
    assert backoff.succeeded() == 2000 and backoff.succeeded() == 0
    assert backoff.failed(OSError()) and backoff.pause == 1.0
