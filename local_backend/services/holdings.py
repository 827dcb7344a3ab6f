"""The history of slots: which exec held which slot, and for how long. Users see their own holdings, administrators
the holdings of all users."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from local_backend.errors import Invalid
from local_backend.services.access import Caller
from local_backend.services.base import Base
from local_backend.store import holdings

#: Maximum number of intervals in one answer: some tens of MiB.
_MOST = 100_000


@dataclass(frozen=True)
class Period:
    """Two moments in epoch seconds, and the kind of slot that counts (None: any)."""

    since: float
    until: float
    kind: str | None = None


@dataclass(frozen=True)
class HoldingService:
    """Queries about the history of slots."""

    base: Base

    def totals(self, caller: Caller, period: Period, column: str) -> list[tuple[str, float]]:
        """Return (key, slot-seconds) for each value of a column, largest first. Open intervals count until now."""
        return self.base.database.read(lambda c: holdings.totals(
            c, period.since, period.until, time.time(), period.kind, column, caller.sees_of,
        ))

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
