"""The event stream: its content, order and retention, and how readers are notified."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text, update
from sqlalchemy.event import listen, remove
from support import PATIENCE
from workloads import workload

from dlicmd.contract.states import ERROR, FINISHED, PENDING, RECOVERING, RUNNING, SUBMITTED
from local_backend.store import events, execs
from local_backend.store.bus import Bus
from local_backend.store.database import Database
from local_backend.store.events import Event
from local_backend.store.holdings import SlotPart
from local_backend.store.schema import events as table

TRAINING = "/local/training"


def new_exec(database: Database) -> str:
    number = database.write(execs.next_number)
    spec = workload(id=execs.exec_id(number), creator="alice")
    return database.write(lambda c: execs.create(c, number, spec, "", None, "/work")).id


def move(database: Database, exec_id: str, to: str, **values: Any) -> None:
    assert database.write(lambda c: execs.transition(c, exec_id, to, **values))


def stream(database: Database, last: int = 0, exec_id: str | None = None) -> list[Event]:
    return database.read(lambda c: events.since(c, last, exec_id))


def cpus(*numbers: int) -> list[SlotPart]:
    return [SlotPart(f"cpu-{number}", "cpu") for number in numbers]


def test_every_change_visible_to_users_is_an_event(database: Database) -> None:
    exec_id = new_exec(database)
    changes: list[tuple[Callable[[Connection], object], list[tuple[str, dict[str, Any]]]]] = [
        (lambda c: execs.transition(c, exec_id, PENDING), [("state", {"state": PENDING})]),
        (lambda c: execs.transition(c, exec_id, FINISHED), []),  # not a legal transition
        (lambda c: execs.note(c, exec_id, message="no space"), [("message", {"message": "no space"})]),
        (lambda c: execs.note(c, exec_id, message="no space"), []),
        (lambda c: execs.begin_attempt(c, exec_id, cpus(0), TRAINING), []),
        (lambda c: execs.transition(c, exec_id, RUNNING, attempt=1, message=None),
         [("state", {"state": RUNNING, "slots": 1})]),
        (lambda c: execs.hold(c, exec_id, cpus(0), TRAINING), []),
        (lambda c: execs.hold(c, exec_id, cpus(0, 1, 2), TRAINING), [("resize", {"before": 1, "slots": 3})]),
        (lambda c: execs.hold(c, exec_id, cpus(1), TRAINING), [("resize", {"before": 3, "slots": 1})]),
        (lambda c: execs.note(c, exec_id, pinned=1), [("fixed", {"fixedSlots": 1})]),
        (lambda c: execs.note(c, exec_id, pinned=None), [("fixed", {"fixedSlots": None})]),
        (lambda c: execs.rest(c, exec_id, 2), []),  # it is to train to its end
        (lambda c: execs.promote(c, exec_id, 2), []),
        (lambda c: execs.rest(c, exec_id, 1), []),  # too early
        (lambda c: execs.rest(c, exec_id, 2), [("rested", {"epoch": 2})]),
        (lambda c: execs.rest(c, exec_id, 2), []),
        (lambda c: execs.promote(c, exec_id, 4), []),
        (lambda c: execs.rest(c, exec_id, 2), []),  # promoted meanwhile
        (lambda c: execs.rest(c, exec_id, 4), [("rested", {"epoch": 4})]),
        (lambda c: execs.promote(c, exec_id, None), []),
        (lambda c: execs.note(c, exec_id, stop_requested=True), []),
        (lambda c: execs.transition(c, exec_id, ERROR, message="it failed", reason="LOST", exit_code=3),
         [("state", {"state": ERROR, "message": "it failed", "reason": "LOST", "exitCode": 3})]),
        (lambda c: execs.note(c, exec_id, stop_requested=True, deleted=True), [("deleted", {"creator": "alice"})]),
        (lambda c: execs.note(c, exec_id, deleted=True), []),
        (lambda c: execs.note(c, "local-99", deleted=True), []),
    ]
    (first,) = stream(database)
    assert (first.exec_id, first.kind, first.data) == (exec_id, "state", {"state": SUBMITTED})
    last = first.id
    for change, told in changes:
        database.write(change)
        found = stream(database, last)
        assert [(event.kind, event.data) for event in found] == told
        last = found[-1].id if found else last


def test_event_ids_only_grow(database: Database) -> None:
    one, other = new_exec(database), new_exec(database)
    move(database, other, PENDING)
    last = stream(database)[-1].id
    database.write(lambda c: c.execute(text("DELETE FROM events")))
    move(database, one, PENDING)
    (found,) = stream(database)
    assert found.id > last


def test_a_rolled_back_change_is_no_event(database: Database) -> None:
    exec_id = new_exec(database)
    woken: list[int] = []
    database.bus.subscribe(lambda: woken.append(1))

    def fails(connection: Connection) -> None:
        assert execs.transition(connection, exec_id, PENDING)
        raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        database.write(fails)
    assert [event.data for event in stream(database)] == [{"state": SUBMITTED}] and not woken


def test_a_removed_exec_leaves_only_its_deletion_event(database: Database) -> None:
    one, other = new_exec(database), new_exec(database)
    database.write(lambda c: execs.note(c, one, deleted=True))
    database.write(lambda c: execs.remove(c, one))
    assert [event.kind for event in stream(database, exec_id=one)] == ["deleted"]
    assert [event.kind for event in stream(database, exec_id=other)] == ["state"]


def test_old_events_are_pruned(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    new_exec(database)
    assert database.read(lambda c: events.expired(c, time.time())) == 0
    for _ in range(9):
        new_exec(database)
    found = stream(database)
    old = found[3].id
    database.write(lambda c: c.execute(update(table).where(table.c.id <= old).values(time=1.0)))
    assert database.read(lambda c: events.expired(c, time.time())) == old
    assert database.write(lambda c: events.prune(c, old)) == 4
    assert stream(database) == found[4:] and database.read(lambda c: events.expired(c, time.time())) == 0
    monkeypatch.setattr(events, "MOST", 2)
    end = database.read(lambda c: events.expired(c, time.time()))
    assert database.write(lambda c: events.prune(c, end)) == 4 and stream(database) == found[8:]
    later = time.time() + events.KEPT + 1
    end = database.read(lambda c: events.expired(c, later))
    assert database.write(lambda c: events.prune(c, end)) == 2 and stream(database) == []
    assert database.read(lambda c: events.expired(c, later)) == 0


def test_an_exec_that_changes_its_state_without_end_displaces_no_event_of_another_exec(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MOST", events.MOST_OF_EXEC + 10)
    quiet, restless = new_exec(database), new_exec(database)
    move(database, restless, PENDING)

    def change_often(connection: Connection) -> None:
        for _ in range(events.MOST_OF_EXEC):
            assert execs.transition(connection, restless, RUNNING)
            assert execs.transition(connection, restless, RECOVERING)

    database.write(change_often)
    found = stream(database, exec_id=restless)
    assert [event.data["state"] for event in found] == [RUNNING, RECOVERING] * (events.MOST_OF_EXEC // 2)
    assert database.read(lambda c: events.expired(c, time.time())) == 0
    assert [event.data for event in stream(database, exec_id=quiet)] == [{"state": SUBMITTED}]


def test_a_commit_without_an_answer_wakes_the_readers(database: Database) -> None:
    """The connection to PostgreSQL may break after the commit and before its answer."""
    exec_id = new_exec(database)
    before = database.changes
    woken: list[int] = []
    database.bus.subscribe(lambda: woken.append(1), exec_id)

    def commit_and_break(connection: Connection) -> None:
        connection.exec_driver_sql("COMMIT")
        raise ConnectionResetError

    listen(Engine, "commit", commit_and_break)
    try:
        with pytest.raises(ConnectionResetError):
            database.write(lambda c: execs.transition(c, exec_id, PENDING))
    finally:
        remove(Engine, "commit", commit_and_break)
    assert [event.data["state"] for event in stream(database)] == [SUBMITTED, PENDING]
    assert woken == [1] and database.changes > before


@pytest.mark.parametrize("readers", [1, 5])
def test_readers_get_every_event_once_and_in_order(database: Database, readers: int) -> None:
    ids = [new_exec(database) for _ in range(40)]
    total = 3 * len(ids)

    def read() -> list[Event]:
        """Read as a reader thread does: wait for the bus, then read on from the last event."""
        woken: queue.SimpleQueue[int] = queue.SimpleQueue()
        wake = lambda: woken.put(1)  # noqa: E731
        database.bus.subscribe(wake)
        found: list[Event] = []
        while len(found) < total:
            more = stream(database, found[-1].id if found else 0)
            if not more:
                woken.get(timeout=PATIENCE)
            found += more
        database.bus.unsubscribe(wake)
        return found

    with ThreadPoolExecutor(readers + 4) as pool:
        early = [pool.submit(read) for _ in range(readers)]
        moving = [pool.submit(move, database, name, PENDING) for name in ids]
        for one in moving:
            one.result(PATIENCE)
        late = [pool.submit(read) for _ in range(readers)]
        for name in ids:
            move(database, name, ERROR)
        seen = [one.result(PATIENCE) for one in early + late]
    assert all([event.id for event in one] == sorted({event.id for event in one}) for one in seen)
    assert all(one == seen[0] for one in seen) and database.bus.readers == 0


def test_a_reader_of_one_exec_is_not_woken_for_other_execs(database: Database) -> None:
    one, other = new_exec(database), new_exec(database)
    woken: list[str] = []
    database.bus.subscribe(lambda: woken.append("one"), one)
    database.bus.subscribe(lambda: woken.append("any"))
    move(database, other, PENDING)
    database.write(lambda c: execs.note(c, one, stop_requested=True))  # writes no event
    move(database, one, PENDING)
    assert sorted(woken) == ["any", "any", "one"] and database.bus.count == 4


def test_a_reader_that_fails_is_dropped_and_the_writer_continues(database: Database) -> None:
    exec_id = new_exec(database)

    async def listen() -> None:
        with database.bus.listening(exec_id):
            assert database.bus.readers == 1

    asyncio.run(listen())
    assert database.bus.readers == 0

    def broken() -> None:
        raise RuntimeError("Event loop is closed")

    woken: list[int] = []
    database.bus.subscribe(broken, exec_id)
    database.bus.subscribe(lambda: woken.append(1), exec_id)
    move(database, exec_id, PENDING)
    move(database, exec_id, ERROR)
    assert woken == [1, 1] and database.bus.readers == 1


def test_an_event_loop_is_woken_from_another_thread() -> None:
    bus = Bus()

    async def listen() -> None:
        with bus.listening("local-1") as news:
            writer = threading.Thread(target=bus.publish, args=(["local-1"],))
            writer.start()
            await asyncio.wait_for(news.wait(), PATIENCE)
            writer.join()
        assert bus.readers == 0

    asyncio.run(listen())
