"""Calls for monitoring: liveness, readiness, and metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, Response

from dlicmd import __version__
from dlicmd.contract import states, wire
from local_backend.api.depends import TheServices
from local_backend.api.description import ANYONE, EVERY_USER, UNNAMED, about
from local_backend.api.errors import error_response
from local_backend.api.route import Route
from local_backend.api.slots_view import SLOT_STATES, slot_state
from local_backend.services.machine import MachineService
from local_backend.store.states import MOVES

router = APIRouter(tags=["health"], route_class=Route)


#: Seconds for which the metrics are not computed again.
SHARED_SECONDS = 1.0


class _Text(PlainTextResponse):
    """Prometheus' text format."""

    media_type = CONTENT_TYPE_LATEST


@router.get(wire.HEALTH)
@about(ANYONE, extension=UNNAMED, media="text/plain")
async def alive() -> Response:
    """Answer that the process is alive. Nothing else is checked."""
    return PlainTextResponse("ok\n")


@router.get(wire.READY)
@about(ANYONE, extension=UNNAMED, errors={503: "server.not_ready"}, media="text/plain")
def ready(request: Request, services: TheServices) -> Response:
    """Answer 200 if the server can accept and run jobs, else 503 with the reasons."""
    troubles = services.machine.troubles()
    if not troubles:
        return PlainTextResponse("ready\n")
    return error_response(request.scope, 503, "server.not_ready", "; ".join(troubles))


@router.get(wire.METRICS)
@about(f"{EVERY_USER}; {ANYONE}, if a setting says so", extension=UNNAMED, media="text/plain")
async def metrics(request: Request, services: TheServices) -> Response:
    """Return counts and times in Prometheus' text format. They are computed at most once a second."""
    exposition: Exposition = request.app.state.exposition
    return _Text(await exposition.text(services.machine))


class Exposition:
    """The text of all metrics, which all calls within a second share."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._text = b""
        self._until = 0.0

    async def text(self, machine: MachineService) -> bytes:
        """Return the present text, or one that is less than SHARED_SECONDS old."""
        async with self._lock:
            if time.monotonic() >= self._until:
                self._text = await run_in_threadpool(_computed, machine)
                self._until = time.monotonic() + SHARED_SECONDS
            return self._text


def _computed(machine: MachineService) -> bytes:
    now = CollectorRegistry(auto_describe=False)
    now.register(_Now(machine))
    return bytes(generate_latest(now) + generate_latest(REGISTRY))


class _Now(Collector):
    """Metrics that are computed when they are read."""

    def __init__(self, machine: MachineService) -> None:
        self._machine = machine

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        info = GaugeMetricFamily("dlicmd_info", "Version of the server.", labels=["version"])
        info.add_metric([__version__], 1)
        yield info
        yield self._slots()
        counts = self._machine.counts()
        found = GaugeMetricFamily("dlicmd_execs", "Execs that are not deleted, by state.", labels=["state"])
        for state in sorted(MOVES):
            found.add_metric([state], counts.get(state, 0))
        yield found
        waiting = sum(counts.get(state, 0) for state in (states.SUBMITTED, states.PENDING))
        yield from self._loops()
        yield GaugeMetricFamily("dlicmd_queue_length", "Execs that are waiting for slots.", value=waiting)

    def _loops(self) -> Iterator[Metric]:
        failures = GaugeMetricFamily("dlicmd_loop_failures", "Turns that failed since the last success.",
                                     labels=["loop"])
        busy = GaugeMetricFamily("dlicmd_loop_busy_seconds", "Seconds that the present turn has taken.",
                                 labels=["loop"])
        for loop in self._machine.loops:
            if loop.alive:
                failures.add_metric([loop.name], loop.failures)
                busy.add_metric([loop.name], loop.busy)
        yield failures
        yield busy

    def _slots(self) -> Metric:
        places = self._machine.places()
        found = GaugeMetricFamily("dlicmd_slots", "Slots of the machine, by kind and state.", labels=["kind", "state"])
        for kind in sorted({place.slot.kind for place in places}):
            for state in SLOT_STATES:
                count = sum(place.slot.kind == kind and slot_state(place) == state for place in places)
                found.add_metric([kind, state], count)
        return found
