"""A preview of plans, compared with what a supervisor with real processes does after the change."""

from __future__ import annotations

import json

import pytest
from runtime_support import Bench
from support import eventually

from local_backend.runtime.planning import Plans
from local_backend.services.access import Caller
from local_backend.services.base import Base, audit_log
from local_backend.services.plans import PlanService

SLEEP = "import time\ntime.sleep(600)\n"


@pytest.mark.integration
def test_the_supervisor_does_what_the_preview_says(backend: Bench) -> None:
    base = Base(backend.settings, audit_log(backend.settings), backend.database, backend.wake)
    service = PlanService(base, Plans(backend.database), backend.supervisor)  # type: ignore[attr-defined]
    admin = Caller("ada", True)
    service.replace(admin, {"plans": [{"name": "owner"}, {"name": "borrower"}]})
    lent = [backend.submit(SLEEP, consumer="borrower") for _ in range(2)]
    for job in lent:
        backend.wait_running(job)
    owner = backend.submit(SLEEP, consumer="owner")
    eventually(lambda: backend.waits_for(owner), "the job of the owner waits")
    changed = {"plans": [{"name": "owner"}, {"name": "borrower", "reclaim_grace": 0}]}
    forecast = service.preview(admin, changed)
    assert {one.id: (one.slots_now, one.slots_then) for one in forecast.execs} == {
        lent[0]: (1, 1), lent[1]: (1, 0), owner: (0, 1),
    }
    service.replace(admin, changed)

    def slots() -> dict[str, int]:
        return {job: len(json.loads(backend.row(job).slots or "[]")) for job in (*lent, owner)}

    eventually(lambda: slots() == {one.id: one.slots_then for one in forecast.execs}, "the forecast comes true")
    for job in (*lent, owner):
        backend.stop(job)
