"""The number of kernels that a load needs."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import examples

from local_backend.inference.autoscaler import ScalerMemory, presses, resumed, wanted
from local_backend.inference.control import KernelLoad, RequestLimits, RevisionLoad
from local_backend.inference.profile import ModelProfile

PROFILE = ModelProfile(kernel_min=0, kernel_max=20)


def load(ready: int = 0, **values: object) -> RevisionLoad:
    """A load with so many ready kernels."""
    kernels = tuple(KernelLoad(number, 100 + number, True) for number in range(ready))
    return RevisionLoad(**{"kernels": kernels, "batch_seconds": 0.1} | values)  # type: ignore[arg-type]


def follow(steps: list[tuple[float, RevisionLoad]], profile: ModelProfile = PROFILE) -> list[int]:
    """The answers for loads at these times."""
    memory, found = ScalerMemory(), []
    for now, one in steps:
        kernels, memory = wanted(one, profile, memory, now)
        found.append(kernels)
    return found


def steady(rate: float, seconds: float, profile: ModelProfile = PROFILE, begin: float = 0.0) -> list[int]:
    """The answers for a load that all kernels that were wanted handle without a queue."""
    memory, found, now, arrived, ready = ScalerMemory(), [], begin, 0.0, 0
    while now < begin + seconds:
        kernels, memory = wanted(load(ready, arrived=int(arrived), running=min(ready, 1)), profile, memory, now)
        found.append(kernels)
        ready, now, arrived = kernels, now + profile.schedule_interval, arrived + rate * profile.schedule_interval
    return found


def test_a_model_without_requests_has_its_minimum() -> None:
    assert follow([(0.0, load())]) == [0]
    assert follow([(0.0, load())], replace(PROFILE, kernel_min=2)) == [2]


def test_the_first_request_gets_a_kernel_at_once() -> None:
    assert follow([(0.0, load()), (0.1, load(queued=1, arrived=1))]) == [0, 1]
    assert presses(load(queued=1), PROFILE) and not presses(load(1, queued=1), PROFILE)


def test_the_rate_of_arrivals_gives_the_number_of_kernels() -> None:
    # 40 requests per second of 0.1 s each keep 4 kernels busy all the time: 5 kernels for 80 %.
    assert steady(40.0, 60.0)[-1] == 5
    batches = replace(PROFILE, limits=RequestLimits(batch_size=4))
    assert steady(40.0, 60.0, batches)[-1] == 2


def test_a_queue_that_would_wait_for_long_gets_kernels_at_once() -> None:
    found = follow([(0.0, load(1)), (0.2, load(1, queued=40, arrived=40, running=1, oldest=0.2))])
    assert found[1] >= 4
    # A queue that 1 kernel answers in time needs no other one.
    assert follow([(0.0, load(1)), (3.0, load(1, queued=1, arrived=3, running=1))])[1] == 1


def test_a_kernel_whose_first_batch_is_not_answered_yet_gets_help_only_if_requests_wait_for_long() -> None:
    unknown = load(1, queued=9, running=1, arrived=10, batch_seconds=0.0)
    steps = [(0.0, unknown), (1.0, replace(unknown, oldest=1.0)), (4.0, replace(unknown, oldest=4.0))]
    assert follow(steps) == [1, 1, 2]


def test_surplus_kernels_go_after_the_release_time() -> None:
    busy = [(float(at), load(5, arrived=40 * at, running=4)) for at in range(0, 31)]
    quiet = [(float(at), load(5, arrived=1200)) for at in range(31, 160)]
    found = follow([*busy, *quiet])
    assert found[30] == 5
    fell = next(at for at, kernels in enumerate(found) if at > 30 and kernels < 5)
    assert 30 + PROFILE.release_time <= fell + 1 and found[-1] == 0


def test_a_model_that_gets_a_request_now_and_then_keeps_its_kernel() -> None:
    steps = [(float(at), load(1, arrived=at // 30)) for at in range(0, 300, 3)]
    assert set(follow(steps)[10:]) == {1}


def test_a_gateway_that_starts_again_counts_from_0() -> None:
    steps = [(float(at), load(5, arrived=40 * at, running=4)) for at in range(0, 30, 3)]
    steps += [(float(at), load(5, arrived=40 * (at - 29), running=4)) for at in range(30, 60, 3)]
    assert set(follow(steps)[5:]) == {5}


def test_a_server_that_starts_keeps_the_kernels_for_the_release_time() -> None:
    memory, found = resumed(4, 0.0), []
    for at in (0.0, 30.0, 59.0, 61.0):
        kernels, memory = wanted(load(4), PROFILE, memory, at)
        found.append(kernels)
    assert found == [4, 4, 4, 0]


@given(rate=st.floats(0.0, 200.0), interval=st.sampled_from([0.5, 3.0]), seconds=st.sampled_from([0.02, 0.1, 1.0]))
@settings(max_examples=examples(300), deadline=None)
def test_a_steady_load_changes_nothing_after_a_while(rate: float, interval: float, seconds: float) -> None:
    profile = replace(PROFILE, schedule_interval=interval)
    found = steady(rate, 100.0 * interval + 100.0, profile)
    tail = found[-int(60.0 / interval):]
    assert max(tail) - min(tail) <= 1 and sum(a != b for a, b in pairwise(tail)) <= 1


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[float, RevisionLoad]]:
    now, arrived, steps = 0.0, 0, []
    for _ in range(draw(st.integers(1, 40))):
        now += draw(st.sampled_from([0.0, 0.05, 1.0, 3.0, 30.0, 100.0]))
        queued, running = draw(st.integers(0, 300)), draw(st.integers(0, 30))
        arrived = draw(st.sampled_from([arrived, arrived + queued, 0]))
        steps.append((now, load(
            draw(st.integers(0, 25)), queued=queued, running=running, arrived=arrived,
            oldest=draw(st.floats(0.0, 100.0)) if queued else 0.0,
            batch_seconds=draw(st.sampled_from([0.0, 0.001, 0.1, 30.0])))))
    return steps


@given(
    steps=histories(), least=st.integers(0, 3), most=st.sampled_from([None, 3, 20]),
    release=st.sampled_from([1.0, 60.0]),
    limits=st.builds(RequestLimits, st.sampled_from([1, 8]), execution_timeout=st.sampled_from([None, 60.0])),
)
@settings(max_examples=examples(1000), deadline=None)
def test_the_answer_stays_within_its_bounds_and_falls_only_after_the_release_time(
    steps: list[tuple[float, RevisionLoad]], least: int, most: int | None, release: float, limits: RequestLimits,
) -> None:
    profile = replace(PROFILE, kernel_min=least, kernel_max=most, release_time=release, limits=limits)
    found = follow(steps, profile)
    assert all(least <= kernels <= (most or kernels) for kernels in found)
    for (_, one), kernels in zip(steps, found, strict=True):
        assert kernels >= 1 or not (one.queued or one.running), "requests need a kernel"
    for at in range(1, len(found)):
        if found[at] < found[at - 1]:
            # The larger answer was not needed for the release time: it is that of an earlier need.
            since = next(i for i in range(at) if found[i] >= found[at - 1])
            assert steps[at][0] - steps[since][0] >= release or steps[at][0] == steps[since][0]
    assert follow(steps, profile) == found


@pytest.mark.parametrize("most", [1, 7])
def test_the_memory_does_not_grow(most: int) -> None:
    memory = ScalerMemory()
    profile = replace(PROFILE, kernel_max=most, release_time=1e9)
    for at in range(2000):
        _, memory = wanted(load(most, queued=at * 7919 % 97, arrived=at * 3, oldest=5.0), profile, memory, float(at))
    assert len(memory.needs) <= most + 1


def test_the_need_falls_at_once_when_a_burst_ends() -> None:
    short = replace(PROFILE, schedule_interval=1.0, release_time=0.5)
    steps = [(float(at), load(3, arrived=30 * at, running=3)) for at in range(20)]
    *before, at_end, later = follow([*steps, (20.0, load(3, arrived=570)), (21.0, load(3, arrived=570))], short)
    assert before[-1] == 4 and (at_end, later) == (1, 1)
