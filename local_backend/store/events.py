"""The event stream: every change of an exec that users see, with an id that grows from event to event.

execs.py appends an event in the transaction of the change. After the commit, the bus of the database wakes the readers
of the stream, see bus.py. A reader keeps the id of the last event that it has read, and reads on from there, so it
misses no event. There is one writer, so ids become visible in their order. An id may be left out.

The stream is bounded: an exec has at most MOST_OF_EXEC events, and its program cannot displace events of other execs.
The events of an exec disappear with the exec, except its deletion. `prune` deletes old events.
Each function takes the connection of a transaction (see database.py). Times are epoch seconds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, insert, select

from local_backend.store.schema import events

#: The exec entered a state: `state`, and if known `message`, `reason`, `exitCode`; `slots` of a running exec. The
#: first event of an exec is its submission.
STATE = "state"
#: A running exec has other slots: their number `before`, and `slots` now.
RESIZE = "resize"
#: An administrator fixed the number of slots: `fixedSlots`; null: the scheduler decides.
FIXED = "fixed"
#: The exec rests until it is promoted: the number of finished epochs, `epoch`.
RESTED = "rested"
#: A service wants another number of kernels: `wanted`; null: its minimum.
WANTED = "wanted"
#: The exec has another `message`; its state is the same.
MESSAGE = "message"
#: The exec was deleted; its `creator`.
DELETED = "deleted"

#: Seconds for which events are kept, and their maximum number (about 20 MB).
KEPT = 30 * 86400.0
MOST = 100_000
#: Maximum number of events of an exec; older ones are deleted. A program can change the state of its exec at will.
MOST_OF_EXEC = 1000
_SURPLUS = (
    select(events.c.id).where(events.c.exec_id == bindparam("exec_id")).order_by(events.c.id.desc())
    .offset(MOST_OF_EXEC).limit(1)
)
#: Key of `Connection.info` for the ids of the execs that have new events.
_CHANGED = "dlicmd.changed"


@dataclass(frozen=True)
class Event:
    """One change of an exec. `data` depends on the kind, see above."""

    id: int
    exec_id: str
    time: float
    kind: str
    data: Mapping[str, Any]


def append(connection: Connection, exec_id: str, kind: str, data: Mapping[str, Any]) -> None:
    """Append an event, and delete the events of the exec beyond the newest MOST_OF_EXEC. The event exists if the
    transaction is committed."""
    values = {"exec_id": exec_id, "time": time.time(), "kind": kind, "data": json.dumps(data)}
    connection.execute(insert(events).values(values))
    surplus = connection.execute(_SURPLUS, values).scalar()
    if surplus is not None:
        connection.execute(delete(events).where(events.c.exec_id == exec_id, events.c.id <= surplus))
    connection.info.setdefault(_CHANGED, set()).add(exec_id)


def changed(connection: Connection) -> set[str]:
    """Return the ids of the execs for which events were appended since the last call, also if a part of the
    transaction was rolled back."""
    found: set[str] = connection.info.pop(_CHANGED, set())
    return found


def since(connection: Connection, last: int, exec_id: str | None = None) -> list[Event]:
    """Return the events with an id above `last`, of this exec or of all execs, oldest first."""
    query = select(events).where(events.c.id > last).order_by(events.c.id)
    if exec_id is not None:
        query = query.where(events.c.exec_id == exec_id)
    return [Event(row.id, row.exec_id, row.time, row.kind, json.loads(row.data)) for row in connection.execute(query)]


def forget(connection: Connection, exec_id: str) -> None:
    """Delete the events of an exec that is removed, except its deletion, which a reader may not have read yet."""
    connection.execute(delete(events).where(events.c.exec_id == exec_id, events.c.kind != DELETED))


def expired(connection: Connection, now: float) -> int:
    """Return the id up to which events are too old or too many; 0 if none are."""
    last = connection.execute(select(func.max(events.c.id))).scalar() or 0
    fresh = select(events.c.id).where(events.c.time >= now - KEPT).order_by(events.c.id).limit(1)
    kept_from = connection.execute(fresh).scalar() or last + 1
    oldest = connection.execute(select(func.min(events.c.id))).scalar() or last + 1
    surplus = connection.execute(select(events.c.id).order_by(events.c.id.desc()).offset(MOST).limit(1)).scalar() or 0
    end = max(kept_from - 1, surplus)
    return end if oldest <= end else 0


def prune(connection: Connection, end: int) -> int:
    """Delete the events with ids up to `end`; return their number."""
    return connection.execute(delete(events).where(events.c.id <= end)).rowcount
