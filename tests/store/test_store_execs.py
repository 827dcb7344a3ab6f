"""Exec numbers, states, unfinished execs and tokens in the database."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection
from workloads import workload

from dlicmd.contract import states
from local_backend.store import events, execs, tokens
from local_backend.store.database import Database
from local_backend.store.holdings import SlotPart
from local_backend.store.sqlite import wal_is_safe
from local_backend.store.states import MOVES
from local_backend.store.unfinished import Unfinished


def new_exec(database: Database, user: str = "alice") -> str:
    number = database.write(execs.next_number)
    spec = workload(id=execs.exec_id(number), creator=user, name="name", user_cmd=("ls",), variables={"A": "ü"})
    return database.write(lambda c: execs.create(c, number, spec, "args ", [{"type": "fs"}], "/work")).id


def move(database: Database, exec_id: str, to: str) -> bool:
    return database.write(lambda c: execs.transition(c, exec_id, to))


def entered(database: Database, exec_id: str) -> list[str]:
    """Return the states of an exec in the order in which the exec entered them."""
    found = database.read(lambda c: events.since(c, 0, exec_id))
    return [event.data["state"] for event in found if event.kind == events.STATE]


def test_exec_numbers_are_unique(database: Database) -> None:
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(lambda _: database.write(execs.next_number), range(100)))
    assert sorted(numbers) == list(range(1, 101))
    assert database.read(execs.last_number) == 100


def test_a_failed_write_changes_nothing_and_the_next_write_succeeds(database: Database) -> None:
    def fails(connection) -> None:
        execs.next_number(connection)
        raise ValueError("stop")

    before = database.changes
    with pytest.raises(ValueError, match="stop"):
        database.write(fails)
    assert database.changes == before and database.read(execs.last_number) == 0
    assert database.write(execs.next_number) == 1 and database.changes == before + 1


def test_a_reader_cannot_write(database: Database) -> None:
    with pytest.raises(Exception, match=r"read-?only"):
        database.read(execs.next_number)


def test_an_exec_and_its_spec_are_read_as_written(database: Database) -> None:
    exec_id = new_exec(database)
    row = database.read(lambda c: execs.get(c, exec_id))
    assert row is not None and row.state == states.SUBMITTED and row.workload.program.user_cmd == ("ls",)
    assert row.workload.environment.variables == {"A": "ü"} and not row.terminal
    assert database.read(execs.damaged) is None


def test_recovery_keeps_the_start_time_of_an_exec(database: Database) -> None:
    exec_id = new_exec(database)
    began = []
    for to in (states.PENDING, states.RUNNING, states.RECOVERING, states.RUNNING, states.PENDING, states.RUNNING):
        assert move(database, exec_id, to)
        row = database.read(lambda c: execs.get(c, exec_id))
        assert row is not None
        began.append(row.start_time)
    assert began[1] == began[3] != began[5]


@pytest.mark.parametrize("where", ["sqlite"], indirect=True)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(sorted(MOVES)), max_size=8))
def test_only_legal_state_transitions_happen(database: Database, wanted: list[str]) -> None:
    exec_id, state, passed = new_exec(database), states.SUBMITTED, [states.SUBMITTED]
    for to in wanted:
        moved = database.write(lambda c, t=to: execs.transition(c, exec_id, t))
        assert moved == (to in MOVES[state])
        if moved:
            state = to
            passed.append(to)
    row = database.read(lambda c: execs.get(c, exec_id))
    assert row is not None and row.state == state
    assert entered(database, exec_id) == passed
    assert (row.end_time is not None) == (state in states.TERMINAL)


def test_concurrent_final_transitions_end_in_one_state(database: Database) -> None:
    for _ in range(20):
        exec_id = new_exec(database)
        for state in (states.PENDING, states.RUNNING):
            move(database, exec_id, state)
        with ThreadPoolExecutor(3) as pool:
            won = list(pool.map(partial(move, database, exec_id), sorted(states.TERMINAL)))
        assert sum(won) == 1


def test_a_late_report_does_not_set_the_start_after_the_end(database: Database) -> None:
    exec_id = new_exec(database)
    ended = time.time() - 3600
    for to, values in ((states.PENDING, {}), (states.RUNNING, {}), (states.FINISHED, {"end_time": ended})):
        assert database.write(lambda c, to=to, values=values: execs.transition(c, exec_id, to, **values))
    row = database.read(lambda c: execs.get(c, exec_id))
    assert row is not None and (row.start_time, row.end_time) == (ended, ended)
    assert database.read(lambda c: execs.earlier_runs(c, row, 1)) == [0.0]


def test_an_exec_that_never_ran_has_no_start_time(database: Database) -> None:
    exec_id = new_exec(database)
    assert move(database, exec_id, states.PENDING) and move(database, exec_id, states.KILLED)
    row = database.read(lambda c: execs.get(c, exec_id))
    assert row is not None and row.start_time is None and row.end_time is not None


def test_reports_of_a_stale_attempt_are_ignored(database: Database) -> None:
    exec_id = new_exec(database)
    database.write(lambda c: execs.transition(c, exec_id, states.PENDING))
    assert database.write(lambda c: execs.begin_attempt(c, exec_id, [SlotPart("cpu-0", "cpu")], "/local")) == 1
    assert database.write(lambda c: execs.begin_attempt(c, exec_id, [SlotPart("cpu-1", "cpu")], "/local")) == 2
    assert not database.write(lambda c: execs.transition(c, exec_id, states.RUNNING, attempt=1))
    assert database.write(lambda c: execs.transition(c, exec_id, states.RUNNING, attempt=2))


def test_deleted_execs_are_hidden_until_they_are_removed(database: Database) -> None:
    exec_id, other = new_exec(database), new_exec(database, "bob")
    database.write(lambda c: execs.note(c, exec_id, deleted=True))
    assert database.read(lambda c: execs.get(c, exec_id)) is None
    assert [row.id for row in database.read(lambda c: execs.of_user(c, None))] == [other]
    assert exec_id in {row.id for row in database.read(execs.unfinished)}
    database.write(lambda c: execs.remove(c, exec_id))
    assert database.read(execs.all_ids) == {other}
    assert entered(database, exec_id) == []


@pytest.mark.parametrize(("text", "valid"), [
    ("local-1", True), ("local-0", False), ("local-01", False), ("LOCAL-1", False), ("local-1/..", False), ("", False),
    ("local-1\n", False), ("local-\u0661", False), ("local-" + "9" * 19, False),
])
def test_exec_ids_have_one_form(text: str, valid: bool) -> None:
    assert execs.is_exec_id(text) == valid


def test_tokens_expire_and_can_be_revoked(database: Database) -> None:
    now, (token, over) = time.time(), ("one", "two")
    database.write(lambda c: tokens.keep(c, token, "alice", now + 60))
    database.write(lambda c: tokens.keep(c, over, "alice", now - 1))
    assert database.read(lambda c: tokens.find(c, token)) == tokens.TokenRow("alice", now + 60)
    assert database.read(lambda c: tokens.find(c, over)) is None
    assert database.read(lambda c: tokens.find(c, "\ud800")) is None
    database.write(lambda c: tokens.revoke(c, token))
    assert database.read(lambda c: tokens.find(c, token)) is None


@pytest.mark.parametrize(("version", "safe"), [
    ((3, 40, 1), False), ((3, 44, 5), False), ((3, 44, 6), True), ((3, 45, 0), False), ((3, 50, 6), False),
    ((3, 50, 7), True), ((3, 51, 0), False), ((3, 51, 2), False), ((3, 51, 3), True), ((3, 52, 0), True),
])
def test_sqlite_versions_with_a_safe_wal_are_known(version: tuple[int, ...], safe: bool) -> None:
    assert wal_is_safe(version) == safe


def test_cached_unfinished_execs_match_the_database_after_each_change(database: Database) -> None:
    kept = Unfinished()
    first, second, third = (new_exec(database) for _ in range(3))
    changes: list[Callable[[Connection], object]] = [
        lambda c: execs.note(c, first, message="it waits"),
        lambda c: execs.transition(c, first, states.PENDING),
        lambda c: execs.begin_attempt(c, first, [SlotPart("cpu-0", "cpu")], "/local"),
        lambda c: execs.transition(c, first, states.RUNNING, attempt=1),
        lambda c: execs.hold(c, first, [SlotPart("cpu-1", "cpu")], "/local"),
        lambda c: execs.note(c, first, pinned=1),
        lambda c: execs.note(c, second, stop_requested=True),
        lambda c: execs.transition(c, first, states.FINISHED, exit_code=0),
        lambda c: execs.note(c, first, deleted=True),
        lambda c: execs.remove(c, first),
        lambda c: execs.note(c, third, deleted=True),
    ]
    for change in changes:
        database.write(change)
        assert database.read(kept.read) == database.read(execs.unfinished)
    assert [row.id for row in database.read(kept.read)] == [second, third]
    another = new_exec(database)
    assert [row.id for row in database.read(kept.read)] == [second, third, another]


def test_more_execs_than_a_query_has_parameters_are_cached(database: Database) -> None:
    spec = workload(creator="alice", name="name")

    def many(connection: Connection) -> None:
        for number in range(1, 1202):
            execs.create(connection, number, replace(spec, id=execs.exec_id(number)), "", None, "/work")

    database.write(many)
    assert database.read(Unfinished().read) == database.read(execs.unfinished)
