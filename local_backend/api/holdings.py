"""GET /scheduler/holdings: which execs held which slots, and for how long. Administrators see the holdings of all
users, users see their own."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query

from dlicmd.contract import wire
from local_backend.api.as_json import JsonAnswer
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.description import OWN_EXECS, about
from local_backend.api.models.common import one_of, present
from local_backend.api.models.machine import Holdings, HoldingTotal, Interval
from local_backend.api.objects import iso
from local_backend.api.queries import moment
from local_backend.api.route import Route
from local_backend.errors import Invalid
from local_backend.scheduler.model import CPU, GPU
from local_backend.services.access import Caller
from local_backend.services.holdings import HoldingService, Period

router = APIRouter(tags=["scheduler"], route_class=Route)

#: Value of `by` → the column by which slot-seconds are summed.
_KEYS = {wire.CONSUMER: "consumer", wire.USER: "user", wire.EXEC: "exec_id", wire.SLOT: "slot"}
_DAY = 86400.0


@router.get(wire.HOLDINGS)
@about(OWN_EXECS, extension=wire.EXT_HOLDINGS, errors={
    400: "query.by query.kind query.time holdings.too_many",
})
def who_had_what(
    *,
    services: TheServices,
    caller: TheCaller,
    begin: str | None = Query(
        None, alias=wire.FROM,
        description="start of the period: ISO 8601 or epoch seconds; default: one day before `to`",
    ),
    end: str | None = Query(None, alias=wire.TO, description="end of the period, in the same form; default: now"),
    by: Annotated[str, one_of(*_KEYS, wire.HOLDING)] = wire.CONSUMER,
    kind: Annotated[str | None, one_of(GPU, CPU)] = None,
) -> JsonAnswer[Holdings]:
    """Return the slot-seconds between two moments by consumer, user, exec or slot (`by`), largest first, each with
    its share of the total. Slots that are still held count until now. `by=holding` returns the single intervals
    instead, uncut, oldest first. `kind` (gpu or cpu) counts only slots of that kind. Users who are not administrators
    see only their own holdings, and the total includes only these."""
    now = time.time()
    until = now if end is None else moment(end, wire.TO)
    since = max(0.0, until - _DAY) if begin is None else moment(begin, wire.FROM)
    if since > until:
        raise Invalid("query.time", f"{wire.FROM}: {iso(since)} is later than {wire.TO}, {iso(until)}")
    if by not in (*_KEYS, wire.HOLDING):
        raise Invalid("query.by", f"{wire.BY}: unknown value {by[:40]!r}; use {', '.join(_KEYS)} or {wire.HOLDING}")
    if kind not in (None, GPU, CPU):
        raise Invalid("query.kind", f"{wire.KIND}: unknown value {str(kind)[:40]!r}; use {GPU} or {CPU}")
    return JsonAnswer(_answer(services.holdings, caller, Period(since, until, kind), by))


def _answer(holdings: HoldingService, caller: Caller, period: Period, by: str) -> Holdings:
    totals = holdings.totals(caller, period, _KEYS.get(by, "exec_id"))
    total = sum(seconds for _, seconds in totals)
    return {
        "from": iso(period.since),
        "to": iso(period.until),
        "by": by,
        "slotSeconds": round(total, 3),
        "rows": _intervals(holdings, caller, period) if by == wire.HOLDING else _shares(totals, total),
    }


def _shares(totals: Sequence[tuple[str, float]], total: float) -> list[HoldingTotal]:
    return [
        {"key": name, "slotSeconds": round(seconds, 3), "share": round(seconds / total, 6)} for name, seconds in totals
    ]


def _intervals(holdings: HoldingService, caller: Caller, period: Period) -> list[Interval]:
    return [_interval(row) for row in holdings.intervals(caller, period)]


def _interval(row: Mapping[str, Any]) -> Interval:
    shown: Interval = {
        "execId": row["exec_id"],
        "user": row["user"],
        "consumer": row["consumer"],
        "slot": row["slot"],
        "kind": row["kind"],
        "share": row["share"],
        "from": iso(row["since"]),
        "to": None if row["until"] is None else iso(row["until"]),
    }
    return present(shown)
