"""Which exec held which slot, and when: the history of `execs.slots`. The rows stay when the exec is removed.

A row is an interval. It is open (`until` is NULL) while the slot is held. execs.py writes the rows in the
transaction that changes the slots of an exec, so that the two cannot disagree. Each function takes the connection of
a transaction (see database.py). Times are epoch seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, case, delete, func, insert, or_, select, update

from local_backend.store.schema import holdings

#: Seconds for which an interval is kept after its end: more than a year, for yearly accounts.
KEPT = 400 * 86400.0


@dataclass(frozen=True)
class SlotPart:
    """A held slot, or a fraction of one."""

    slot: str
    kind: str
    share: float = 1.0


def hold(  # noqa: PLR0917
    connection: Connection, exec_id: str, user: str, consumer: str, parts: Iterable[SlotPart], now: float
) -> None:
    """Record that from `now` on an exec holds exactly these parts, for the resource plan with this path."""
    shares: defaultdict[tuple[str, str], float] = defaultdict(float)
    for part in parts:  # several workers may be on one slot
        shares[part.slot, part.kind] += part.share
    wanted = {(slot, kind, round(share, 6), user, consumer) for (slot, kind), share in shares.items()}
    columns = [holdings.c[name] for name in ("slot", "kind", "share", "user", "consumer", "number")]
    rows = connection.execute(select(*columns).where(_open(exec_id))).all()
    kept = {tuple(row[:-1]) for row in rows}
    _close(connection, [row.number for row in rows if tuple(row[:-1]) not in wanted], now)
    for slot, kind, share, _, _ in sorted(wanted - kept):
        connection.execute(insert(holdings).values(
            exec_id=exec_id, user=user, consumer=consumer, slot=slot, kind=kind, share=share, since=now,
        ))


def release(connection: Connection, exec_id: str, when: float) -> None:
    """Record that an exec holds no slots since `when`."""
    numbers = connection.execute(select(holdings.c.number).where(_open(exec_id))).scalars().all()
    _close(connection, numbers, when)


def recount(connection: Connection, consumers: Mapping[str, str], now: float) -> None:
    """Record that from `now` on, held slots count for these resource plans: exec id → path."""
    for exec_id, consumer in consumers.items():
        rows = connection.execute(select(holdings).where(_open(exec_id), holdings.c.consumer != consumer)).all()
        _close(connection, [row.number for row in rows], now)
        for row in rows:
            again = {**row._mapping, "consumer": consumer, "since": max(now, row.since)}
            del again["number"]
            connection.execute(insert(holdings).values(again))


def covered(connection: Connection, exec_id: str, since: float, now: float) -> tuple[float, float | None]:
    """Return the seconds since `since` in which an exec held any slot, and when it released its last slot. That time
    is None while it holds a slot, or if it never held one."""
    query = select(holdings.c.since, holdings.c.until).where(holdings.c.exec_id == exec_id).order_by(holdings.c.since)
    seconds, reached, last, opened = 0.0, since, None, False
    for began, until in connection.execute(query):
        end = now if until is None else until
        opened |= until is None
        seconds += max(0.0, end - max(began, reached))
        reached, last = max(reached, end), end if last is None else max(last, end)
    return seconds, None if opened else last


def holders(connection: Connection) -> list[str]:
    """Return the ids of the execs that hold slots."""
    query = select(holdings.c.exec_id).where(holdings.c.until.is_(None)).distinct()
    return list(connection.execute(query).scalars())


def held(connection: Connection, exec_id: str) -> dict[str, str]:
    """Return the kind of each slot that an exec holds, by the ids of the slots, sorted."""
    query = select(holdings.c.slot, holdings.c.kind).where(_open(exec_id)).order_by(holdings.c.slot)
    return {str(row.slot): str(row.kind) for row in connection.execute(query)}


def intervals(  # noqa: PLR0917
    connection: Connection, begin: float, end: float, kind: str | None, most: int, user: str | None = None
) -> list[Mapping[str, Any]]:
    """Return the first `most` intervals in which a slot (of this kind, for this user) was held at some time between
    `begin` and `end`. Oldest first, and not clipped."""
    names = ("exec_id", "user", "consumer", "slot", "kind", "share", "since", "until")
    query = _within(select(*(holdings.c[name] for name in names)), begin, end, kind, user)
    query = query.order_by(holdings.c.since, holdings.c.number).limit(most)
    return [dict(row) for row in connection.execute(query).mappings()]


def totals(  # noqa: PLR0917
    connection: Connection, begin: float, end: float, now: float, kind: str | None, by: str, user: str | None = None
) -> list[tuple[str, float]]:
    """Return the slot-seconds (of this kind, for this user) between `begin` and `end`, per value of a column
    (consumer, user, exec_id or slot), most first. Open intervals count until `now`."""
    since = _later(holdings.c.since, begin)
    ended = func.coalesce(holdings.c.until, now)
    seconds = case((ended < end, ended), else_=end) - since
    amount = func.sum(holdings.c.share * case((seconds > 0, seconds), else_=0.0)).label("amount")
    key = holdings.c[by]
    query = _within(select(key, amount), begin, end, kind, user).group_by(key)
    found = [(str(name), float(total)) for name, total in connection.execute(query) if total > 0]
    return sorted(found, key=lambda item: (-item[1], item[0]))


def prune(connection: Connection, now: float) -> int:
    """Delete intervals that ended too long ago; return their number."""
    return connection.execute(delete(holdings).where(holdings.c.until < now - KEPT)).rowcount


def _open(exec_id: str) -> Any:
    return holdings.c.until.is_(None) & (holdings.c.exec_id == exec_id)


def _close(connection: Connection, numbers: Iterable[int], when: float) -> None:
    """Close intervals. The clock of a machine may be set back, so no interval ends before it began."""
    change = update(holdings).where(holdings.c.number.in_(list(numbers)))
    connection.execute(change.values(until=_later(holdings.c.since, when)))


def _later(column: ColumnElement[float], moment: float) -> ColumnElement[float]:
    return case((column > moment, column), else_=moment)


def _within(
    query: Select[Any], begin: float, end: float, kind: str | None, user: str | None
) -> Select[Any]:
    if user is not None:
        query = query.where(holdings.c.user == user)
    query = query.where(holdings.c.since < end, or_(holdings.c.until.is_(None), holdings.c.until > begin))
    return query if kind is None else query.where(holdings.c.kind == kind)
