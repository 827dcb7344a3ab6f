"""What the server remembers of the load of models."""

from __future__ import annotations

import random

from support import examples

from local_backend.inference.control import LATENCY_BOUNDS, GatewayLoad, KernelLoad, RevisionLoad
from local_backend.inference.serving_history import KEPT, STEP, ServingHistory, quantile

#: The beginning of a step.
T0 = 1_000_000.0


def load(when: float, finished: int = 0, latencies: dict[int, int] | None = None, **more: object) -> GatewayLoad:
    counts = [0] * (len(LATENCY_BOUNDS) + 1)
    for place, count in (latencies or {}).items():
        counts[place] = count
    return GatewayLoad(when, {"ping": {1: RevisionLoad(finished=finished, **more)}}, {"ping": counts})  # type: ignore[arg-type]


def test_rates_are_counted_by_steps_and_silence_means_no_request() -> None:
    history = ServingHistory()
    history.add(load(T0 + 1))
    history.add(load(T0 + STEP + 1, 5))
    history.add(load(T0 + STEP + 2, 10))
    history.add(load(T0 + 4 * STEP + 1, 15))
    points = history.points("ping", T0 + 6 * STEP)
    assert [point.requests * STEP for point in points] == [10, 0, 0, 5, 0]
    assert [point.when - T0 for point in points] == [STEP * one for one in range(2, 7)]
    assert history.points("other", T0) == [] and history.latency("other", T0) == (None, None)


def test_latencies_are_those_of_their_step() -> None:
    history = ServingHistory()
    history.add(load(T0, 0))
    history.add(load(T0 + STEP, 100, {0: 100}))
    history.add(load(T0 + 2 * STEP, 200, {0: 100, 6: 100}))
    first, second = history.points("ping", T0 + 3 * STEP)
    assert first.p99 is not None and first.p99 <= LATENCY_BOUNDS[0]
    assert second.p50 is not None and LATENCY_BOUNDS[5] < second.p50 <= LATENCY_BOUNDS[6]
    half, most = history.latency("ping", T0 + 2 * STEP)
    assert half == LATENCY_BOUNDS[0] and most is not None and most > LATENCY_BOUNDS[5]


def test_a_new_gateway_counts_from_zero() -> None:
    history = ServingHistory()
    history.add(load(T0, 100, {0: 100}))
    history.add(load(T0 + STEP, 3, {6: 3}))
    (point,) = history.points("ping", T0 + 2 * STEP)
    assert point.requests == 0 and point.p50 is not None and point.p50 > LATENCY_BOUNDS[5]


def test_kernels_that_take_requests_are_counted() -> None:
    history = ServingHistory()
    kernels = (KernelLoad(1, 1, True), KernelLoad(2, 2, False), KernelLoad(3, 3, True, leaving=True))
    history.add(load(T0, queued=4, running=2, kernels=kernels))
    history.add(load(T0 + STEP, queued=3, running=1, kernels=kernels))
    (point,) = history.points("ping", T0 + 2 * STEP)
    assert (point.waiting, point.running, point.kernels) == (3, 1, 1)


def test_memory_is_bounded_and_models_that_are_gone_are_forgotten() -> None:
    history = ServingHistory()
    history.add(GatewayLoad(T0, {"gone": {1: RevisionLoad()}}))
    for second in range(0, int(3 * KEPT)):
        history.add(load(T0 + second, second))
    now = T0 + 3 * KEPT
    points = history.points("ping", now)
    assert len(points) <= KEPT / STEP + 1 and {point.requests for point in points} == {1.0}
    assert history.points("gone", now) == []
    assert len(history._models["ping"]) <= KEPT / STEP + 2


def test_quantiles_agree_with_the_sorted_values() -> None:
    draw = random.Random(1)
    for _ in range(examples(500)):
        values = sorted(draw.uniform(0, 80) ** draw.choice((1, 0.1)) for _ in range(draw.randint(1, 200)))
        counts = [0] * (len(LATENCY_BOUNDS) + 1)
        for value in values:
            counts[sum(bound < value for bound in LATENCY_BOUNDS)] += 1
        for part in (0.5, 0.99):
            found, exact = quantile(counts, part), values[max(0, -(-int(part * 100) * len(values) // 100) - 1)]
            place = sum(bound < exact for bound in LATENCY_BOUNDS)
            low = LATENCY_BOUNDS[place - 1] if place else 0.0
            high = LATENCY_BOUNDS[min(place, len(LATENCY_BOUNDS) - 1)]
            assert found is not None and min(low, high) <= found <= high
    assert quantile([0] * 16, 0.5) is None
