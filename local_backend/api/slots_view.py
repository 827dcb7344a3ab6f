"""GET /scheduler/slots: the slots of the machine and the execs on them. All users see that a slot is used and how
busy it is. Only the holder's user and administrators see which exec holds it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import cast

from fastapi import APIRouter, Request
from typing_extensions import NotRequired, TypedDict

from dlicmd.contract import states, wire
from local_backend.api.as_json import JsonAnswer
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.description import EVERY_USER, about
from local_backend.api.models.common import present
from local_backend.api.models.machine import PendingExec, RunningExec, SlotHolder, SlotObject, SlotsView
from local_backend.api.objects import PROGRESS, told
from local_backend.api.route import Route
from local_backend.api.showing import show
from local_backend.runtime import needs
from local_backend.runtime.occupancy import Holder, SlotPlace
from local_backend.scheduler.model import CPU, GPU, WHOLE
from local_backend.services.access import Caller
from local_backend.services.services import Services
from local_backend.services.views import ExecView, is_parked
from local_backend.store.execs import ExecRow
from local_backend.workload import SERVICE

router = APIRouter(tags=["scheduler"], route_class=Route)

_SHOWN = (wire.ID, wire.APP_NAME, wire.STATE, wire.SLOTS, wire.RECOVERING, *PROGRESS)
_LAST = 1 << 31
SLOT_STATES = ("drained", "free", "leaving", "used")


class _ServedModel(TypedDict):
    model: NotRequired[str]


@router.get(wire.SLOTS_VIEW)
@about(f"{EVERY_USER}; only administrators see the execs of others", extension=wire.EXT_SLOT_VIEW)
def slots(request: Request, services: TheServices, caller: TheCaller) -> JsonAnswer[SlotsView]:
    """Return the slots with their holders and utilization, the pending execs in the order of the queue, and the
    running execs."""
    return JsonAnswer(slots_view(services, caller, str(request.base_url)))


def slots_view(services: Services, caller: Caller, base_url: str) -> SlotsView:
    """Return the slots, the queue and the running execs as the caller may see them."""
    places = services.machine.places()
    devices = services.machine.use_of(place.slot.device for place in places if place.slot.device)
    busy = {place.slot.id: devices[place.slot.device].busy for place in places if place.slot.device in devices}
    busy |= _cpu_loads(places, services.machine.cpu_load.now())
    rows = {row.id: row for row in services.machine.unfinished(caller)}
    active = [row for row in rows.values() if not (row.terminal or row.deleted)]
    queue = [_waiting(services.execs.view(row)) for row in active if _waits(row)]
    return {
        "slots": [_slot(services, place, busy.get(place.slot.id), rows, caller) for place in places],
        "queue": sorted(queue, key=lambda shown: shown.get("queuePosition") or _LAST),
        "running": [_running(services.execs.view(row), base_url) for row in active if not _waits(row)],
    }


def _waits(row: ExecRow) -> bool:
    """Return whether an exec is pending without slots. A pending exec with slots is about to start."""
    return row.state in (states.SUBMITTED, states.PENDING) and row.slots is None


def _slot(
    services: Services, place: SlotPlace, busy: float | None, rows: Mapping[str, ExecRow], caller: Caller
) -> SlotObject:
    shown: SlotObject = {
        "id": place.slot.id,
        "kind": place.slot.kind,
        "profile": "" if place.slot.kind in (CPU, GPU) else place.slot.kind,
        "state": slot_state(place),
        "reason": place.drained,
        "utilisation": busy,
        "holders": [_holder(services, holder, rows.get(holder.exec_id), caller) for holder in place.holders],
    }
    return present(shown)


def _cpu_loads(places: Sequence[SlotPlace], load: Mapping[str, float]) -> dict[str, float]:
    """Return how busy each CPU slot with a known load is, from 0 to 1. The busy cores of an exec are divided by its
    slots, because the system may run its processes on any core."""
    count = Counter(holder.exec_id for place in places for holder in place.holders)
    found = {}
    for place in places:
        known = [load[holder.exec_id] / count[holder.exec_id] for holder in place.holders if holder.exec_id in load]
        if place.slot.kind == CPU and known:
            found[place.slot.id] = round(min(1.0, sum(known)), 3)
    return found


def slot_state(place: SlotPlace) -> str:
    """Return one of SLOT_STATES."""
    if place.drained is not None:
        return "drained"
    if not place.holders:
        return "free"
    return "leaving" if all(holder.leaving for holder in place.holders) else "used"


def _holder(services: Services, holder: Holder, row: ExecRow | None, caller: Caller) -> SlotHolder:
    """Return a holder of a slot. `row` was read a moment after the slots. It is None if the exec has just ended, or
    belongs to another user."""
    if row is not None:
        consumer = services.plans.consumer(row)
        return {"id": row.id, "user": row.user, "consumer": consumer, "share": holder.share, **_served(row)}
    return {"id": holder.exec_id, "share": holder.share} if caller.admin else {"share": holder.share}


def _waiting(view: ExecView) -> PendingExec:
    row = view.row
    spec = row.workload
    each, least, _ = needs.slots(spec.resources)
    part = needs.share(spec.resources, view.kind) / WHOLE if spec.resources.shares else 1
    shown: PendingExec = {
        "id": row.id,
        "user": row.user,
        "appName": row.app_name,
        "consumer": view.consumer,
        "priority": spec.scheduling.priority,
        "slots": each * least * part,
    }
    if row.message:
        shown["message"] = row.message
    return {**shown, **_served(row), **told(view)}


def _served(row: ExecRow) -> _ServedModel:
    """Return the model that an exec serves, as a field; nothing for other execs."""
    service = row.workload.service if row.kind == SERVICE else None
    return {} if service is None else {"model": service.model}


def _running(view: ExecView, base_url: str) -> RunningExec:
    shown: Mapping[str, object] = show(view, base_url)
    keys = (*_SHOWN, wire.MESSAGE) if is_parked(view.row) or wire.RECOVERING in shown else _SHOWN
    found = {"user": view.row.user, **{key: shown[key] for key in keys if key in shown}, **_served(view.row)}
    if last := view.main_metrics:
        found[wire.LAST_METRICS] = last
    return cast("RunningExec", found)
