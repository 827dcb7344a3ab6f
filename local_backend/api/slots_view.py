"""GET /scheduler/slots: the machine at a glance. That a slot is used, and how much of it, is shown to everybody; by
whom, only to that user and to administrators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request

from dlicmd.contract import states, wire
from local_backend.api.backend import Backend, TheBackend, TheUser
from local_backend.api.caller import Caller
from local_backend.api.objects import PROGRESS, is_parked
from local_backend.api.showing import show, told
from local_backend.runtime import needs
from local_backend.runtime.occupancy import Holder, Place
from local_backend.runtime.utilisation import Use
from local_backend.scheduler.model import CPU, GPU, WHOLE
from local_backend.store import execs
from local_backend.store.execs import ExecRow

router = APIRouter(tags=["scheduler"])

_SHOWN = (wire.ID, wire.APP_NAME, wire.STATE, wire.SLOTS, *PROGRESS)
_LAST = 1 << 31
SLOT_STATES = ("drained", "free", "leaving", "used")


@router.get(wire.SLOTS_VIEW)
def slots(request: Request, backend: TheBackend, user: TheUser) -> dict[str, list[dict[str, Any]]]:
    """The slots with their holders and how busy they are, the execs that wait in their order, and those that run."""
    places = backend.supervisor.places()
    used = backend.utilisation.of(place.slot.device for place in places if place.slot.device)
    rows = {row.id: row for row in backend.database.read(execs.unfinished) if user.sees(row)}
    active = [row for row in rows.values() if not (row.terminal or row.deleted)]
    queue = [_waiting(backend, row) for row in active if _waits(row)]
    return {
        wire.SLOTS: [_slot(backend, place, used, rows, user) for place in places],
        wire.QUEUE: sorted(queue, key=lambda shown: shown.get(wire.QUEUE_POSITION, _LAST)),
        wire.RUNNING: [_running(backend, row, str(request.base_url)) for row in active if not _waits(row)],
    }


def _waits(row: ExecRow) -> bool:
    """Not when it has its slots already and is about to begin."""
    return row.state in (states.SUBMITTED, states.PENDING) and row.slots is None


def _slot(
    backend: Backend, place: Place, used: Mapping[str, Use], rows: Mapping[str, ExecRow], user: Caller
) -> dict[str, Any]:
    shown: dict[str, Any] = {
        wire.ID: place.slot.id,
        wire.KIND: place.slot.kind,
        wire.PROFILE: "" if place.slot.kind in (CPU, GPU) else place.slot.kind,
        wire.STATE: slot_state(place),
        wire.REASON: place.drained,
        wire.UTILISATION: used[place.slot.device].busy if place.slot.device in used else None,
        wire.HOLDERS: [_holder(backend, holder, rows.get(holder.exec_id), user) for holder in place.holders],
    }
    return {key: value for key, value in shown.items() if value is not None}


def slot_state(place: Place) -> str:
    """One of SLOT_STATES."""
    if place.drained is not None:
        return "drained"
    if not place.holders:
        return "free"
    return "leaving" if all(holder.leaving for holder in place.holders) else "used"


def _holder(backend: Backend, holder: Holder, row: ExecRow | None, user: Caller) -> dict[str, Any]:
    """Without its row, which was read a moment later, an exec has just ended, or is another user's."""
    if row is not None:
        return {wire.ID: row.id, wire.USER: row.user, wire.CONSUMER: backend.consumer(row), wire.SHARE: holder.share}
    return ({wire.ID: holder.exec_id} if user.admin else {}) | {wire.SHARE: holder.share}


def _waiting(backend: Backend, row: ExecRow) -> dict[str, Any]:
    spec = row.job
    each, least, _ = needs.slots(spec)
    part = needs.share(spec, backend.kind(row)) / WHOLE if spec.shares else 1
    shown = {
        wire.ID: row.id,
        wire.USER: row.user,
        wire.APP_NAME: row.app_name,
        wire.CONSUMER: backend.consumer(row),
        wire.PRIORITY: spec.priority,
        wire.SLOTS: each * least * part,
    }
    return shown | ({wire.MESSAGE: row.message} if row.message else {}) | told(backend, row)


def _running(backend: Backend, row: ExecRow, base_url: str) -> dict[str, Any]:
    shown = show(backend, row, base_url)
    told = (*_SHOWN, wire.MESSAGE) if is_parked(row) else _SHOWN
    return {wire.USER: row.user} | {key: shown[key] for key in told if key in shown}
