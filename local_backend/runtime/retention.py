"""Selects the ended execs to remove: first execs that are too old, then the oldest while all execs use too much
space."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sqlalchemy import Connection

from dlicmd.contract.sizes import show_size
from local_backend.settings import Quotas
from local_backend.store import execs
from local_backend.store.database import Database
from local_backend.store.execs import Brief

_DAY = 86_400.0


@dataclass(frozen=True)
class Expired:
    """An exec to remove, with its bytes and the reason."""

    row: Brief
    size: int
    why: str

    @property
    def sentence(self) -> str:
        """All values in one line."""
        row = self.row
        return f"{row.id} of {row.creator} ({row.state}, {row.app_name}, {show_size(self.size)}): {self.why}"


def expired(rows: Iterable[Brief], size: Callable[[str], int], quotas: Quotas, now: float) -> list[Expired]:
    """Return the execs to remove, the earliest ended first; never pending or running ones. Pure."""
    rows = [row for row in rows if not row.deleted]
    over = sorted((row for row in rows if row.terminal), key=lambda row: (row.over_since, row.number))
    left = sum(size(row.id) for row in rows)
    found = []
    for row in over:
        days = (now - row.over_since) / _DAY
        if quotas.keep_days is not None and days > quotas.keep_days:
            why = f"it ended {days:.0f} days ago, keep_days is {quotas.keep_days}"
        elif quotas.keep_bytes is not None and left > quotas.keep_bytes:
            why = f"all execs use {show_size(left)}, keep_bytes is {show_size(quotas.keep_bytes)}"
        else:
            continue
        left -= size(row.id)
        found.append(Expired(row, size(row.id), why))
    return found


def discard(database: Database, found: Iterable[Expired]) -> list[Expired]:
    """Mark execs that still exist for removal, as a manual deletion does. Return the marked ones."""
    wanted = list(found)

    def work(connection: Connection) -> list[Expired]:
        marked = []
        for item in wanted:
            row = execs.get(connection, item.row.id)
            if row is not None and row.terminal:
                execs.note(connection, row.id, deleted=True)
                marked.append(item)
        return marked

    return database.write(work) if wanted else []
