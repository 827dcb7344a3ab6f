"""GET /scheduler/holdings: which execs held which slots, and for how long. Administrators see the holdings of all
users, users see their own."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from fastapi import APIRouter, Query

from dlicmd.contract import wire
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.objects import iso
from local_backend.errors import Invalid
from local_backend.scheduler.model import CPU, GPU
from local_backend.services.access import Caller
from local_backend.services.holdings import HoldingService, Period

router = APIRouter(tags=["scheduler"])

#: Value of `by` → the column by which slot-seconds are summed.
_KEYS = {wire.CONSUMER: "consumer", wire.USER: "user", wire.EXEC: "exec_id", wire.SLOT: "slot"}
_DAY = 86400.0
#: The last second that an ISO time can express.
_NEVER = 253402300799.0


@router.get(wire.HOLDINGS)
def who_had_what(
    *,
    services: TheServices,
    caller: TheCaller,
    begin: str | None = Query(
        None, alias=wire.FROM,
        description="start of the period: ISO 8601 or epoch seconds; default: one day before `to`",
    ),
    end: str | None = Query(None, alias=wire.TO, description="end of the period, in the same form; default: now"),
    by: str = wire.CONSUMER,
    kind: str | None = None,
) -> dict[str, Any]:
    """Return the slot-seconds between two moments by consumer, user, exec or slot (`by`), largest first, each with
    its share of the total. Slots that are still held count until now. `by=holding` returns the single intervals
    instead, uncut, oldest first. `kind` (gpu or cpu) counts only slots of that kind. Users who are not administrators
    see only their own holdings, and the total includes only these."""
    now = time.time()
    until = now if end is None else _moment(end, wire.TO)
    since = max(0.0, until - _DAY) if begin is None else _moment(begin, wire.FROM)
    if since > until:
        raise Invalid("query.time", f"{wire.FROM}: {iso(since)} is later than {wire.TO}, {iso(until)}")
    if by not in (*_KEYS, wire.HOLDING):
        raise Invalid("query.by", f"{wire.BY}: unknown value {by[:40]!r}; use {', '.join(_KEYS)} or {wire.HOLDING}")
    if kind not in (None, GPU, CPU):
        raise Invalid("query.kind", f"{wire.KIND}: unknown value {str(kind)[:40]!r}; use {GPU} or {CPU}")
    return _answer(services.holdings, caller, Period(since, until, kind), by)


def _answer(holdings: HoldingService, caller: Caller, period: Period, by: str) -> dict[str, Any]:
    totals = holdings.totals(caller, period, _KEYS.get(by, "exec_id"))
    total = sum(seconds for _, seconds in totals)
    if by == wire.HOLDING:
        rows = [_interval(row) for row in holdings.intervals(caller, period)]
    else:
        rows = [
            {wire.KEY: name, wire.SLOT_SECONDS: round(seconds, 3), wire.SHARE: round(seconds / total, 6)}
            for name, seconds in totals
        ]
    return {
        wire.FROM: iso(period.since), wire.TO: iso(period.until), wire.BY: by, wire.SLOT_SECONDS: round(total, 3),
        wire.ROWS: rows,
    }


def _interval(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        wire.EXEC_ID: row["exec_id"],
        wire.USER: row["user"],
        wire.CONSUMER: row["consumer"],
        wire.SLOT: row["slot"],
        wire.KIND: row["kind"],
        wire.SHARE: row["share"],
        wire.FROM: iso(row["since"]),
        **({} if row["until"] is None else {wire.TO: iso(row["until"])}),
    }


def _moment(text: str, name: str) -> float:
    """Return the epoch seconds of a time in a query. A time without an offset is in UTC. Raises Invalid
    (`query.time`)."""
    if re.fullmatch(r"[0-9]{1,20}(\.[0-9]{1,20})?", text):
        seconds = float(text)
    else:
        try:
            # An unescaped + arrives as a space. Python 3.10 cannot parse Z.
            found = datetime.fromisoformat(re.sub(r" (?=\d\d:?\d\d$)", "+", text.replace("Z", "+00:00"), count=1))
            seconds = (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()
        except (ValueError, OverflowError):
            sentence = f"{name}: {text[:40]!r} is not a time; use ISO 8601 or epoch seconds"
            raise Invalid("query.time", sentence) from None
    if not 0 <= seconds <= _NEVER:
        raise Invalid("query.time", f"{name}: {text[:40]!r} is not between 1970 and 9999")
    return seconds
