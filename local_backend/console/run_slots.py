"""GET /console/runs/{id}/slots: the slots of a run over time, with what happened."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from fastapi import Request
from starlette.responses import Response

from dlicmd.contract import states, wire
from local_backend.api.as_json import JsonAnswer
from local_backend.api.depends import TheCaller, TheServices
from local_backend.console import places
from local_backend.console.rendering import HEADERS
from local_backend.console.route import router as pages
from local_backend.store import events
from local_backend.store.events import Event

router = pages()
_MARKED = {states.RECOVERING: "recovering", states.PENDING: "pending"}
_BEFORE = "before"


@router.get(places.RUNS + "/{run}/slots")
def slots(request: Request, services: TheServices, caller: TheCaller, run: str) -> Response:
    """Return the number of slots over time as charts.js draws it."""
    row, found = services.execs.news(caller, run, 0)
    return JsonAnswer(slots_chart(found, row.end_time or time.time()), headers=HEADERS)


def slots_chart(found: Iterable[Event], end: float) -> dict[str, Any]:
    """Return the chart of the events of a run that ended, or still is, at this time."""
    times: list[float] = []
    counts: list[int] = []
    marks: list[dict[str, Any]] = []

    def note(at: float, count: int) -> None:
        times.append(round(max(at, times[-1] + 0.001) if times else at, 3))
        counts.append(count)

    for event in found:
        if event.kind == events.STATE:
            state = event.data.get(wire.STATE)
            if state in _MARKED and times:
                marks.append({"x": event.time, "text": _MARKED[state]})
            count = event.data.get(wire.SLOTS)
            if isinstance(count, int):
                note(event.time, count)
            elif (times and state not in states.ACTIVE) or (state == states.PENDING and times):
                note(event.time, 0)
        elif event.kind == events.RESIZE:
            before, count = event.data.get(_BEFORE), event.data.get(wire.SLOTS)
            if isinstance(count, int):
                note(event.time, count)
                marks.append({"x": event.time, "text": f"{before} → {count}"})
    if times and end > times[-1]:
        note(end, counts[-1])
    return {
        "x": {"label": "time", "kind": "time"}, "y": {"label": "slots", "zero": True},
        "series": [{"name": "slots", "x": times, "y": counts, "step": True}] if times else [], "marks": marks,
    }
