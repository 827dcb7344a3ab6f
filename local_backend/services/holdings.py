"""The history of slots: which exec held which slot, and for how long. Users see their own holdings, administrators
the holdings of all users."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from local_backend.errors import Invalid
from local_backend.services.access import Caller
from local_backend.services.base import Base
from local_backend.store import holdings

#: Maximum number of intervals in one answer: some tens of MiB.
_MOST = 100_000
_MONTHS = 12


@dataclass(frozen=True)
class Period:
    """Two moments in epoch seconds, and the kind of slot that counts (None: any)."""

    since: float
    until: float
    kind: str | None = None


@dataclass(frozen=True)
class MonthUsage:
    """The slot-seconds of a user in a month of UTC."""

    #: YYYY-MM, and its begin in epoch seconds.
    month: str
    since: float
    user: str
    seconds: float


@dataclass(frozen=True)
class HoldingService:
    """Queries about the history of slots."""

    base: Base

    def totals(self, caller: Caller, period: Period, column: str) -> list[tuple[str, float]]:
        """Return (key, slot-seconds) for each value of a column, largest first. Open intervals count until now."""
        return self.base.database.read(lambda c: holdings.totals(
            c, period.since, period.until, time.time(), period.kind, column, caller.sees_of,
        ))

    @staticmethod
    def months() -> list[tuple[str, float]]:
        """Return name (YYYY-MM) and begin (epoch seconds) of the last 12 months of UTC, the oldest first."""
        at = datetime.now(timezone.utc).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        found = []
        for _ in range(_MONTHS):
            found.append((f"{at:%Y-%m}", at.timestamp()))
            at = (at - timedelta(days=1)).replace(day=1)
        return found[::-1]

    def monthly(self, caller: Caller) -> list[MonthUsage]:
        """Return the slot-seconds of each user in each of the last 12 months, oldest month first, and in a month the
        user with the most first. Users who are not administrators see only their own."""
        months = self.months()
        ends = [*(since for _, since in months[1:]), time.time()]
        return [
            MonthUsage(name, since, user, seconds)
            for (name, since), until in zip(months, ends, strict=True)
            for user, seconds in self.totals(caller, Period(since, until), "user")
        ]

    def intervals(self, caller: Caller, period: Period) -> Sequence[Mapping[str, Any]]:
        """Return the single intervals, oldest first. Raises Invalid (`holdings.too_many`)."""
        found = self.base.database.read(lambda c: holdings.intervals(
            c, period.since, period.until, period.kind, _MOST + 1, caller.sees_of,
        ))
        if len(found) > _MOST:
            raise Invalid(
                "holdings.too_many", f"More than {_MOST} intervals in this period; request a shorter period"
            )
        return found
