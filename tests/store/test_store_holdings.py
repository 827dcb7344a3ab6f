"""The history of slots: which exec held which slot, and when."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.engine import URL
from workloads import workload

from dlicmd.contract.states import ERROR, FINISHED, KILLED, PENDING, RECOVERING, RUNNING, TERMINAL
from local_backend.store import execs, holdings
from local_backend.store.database import Database
from local_backend.store.holdings import SlotPart
from local_backend.store.migrations import upgrade

TRAINING = "/local/training"


def new_exec(database: Database, user: str = "alice") -> str:
    number = database.write(execs.next_number)
    spec = workload(id=execs.exec_id(number), creator=user, user_cmd=("ls",))
    return database.write(lambda c: execs.create(c, number, spec, "args ", None, "/work")).id


def cpus(*numbers: int, share: float = 1.0) -> list[SlotPart]:
    return [SlotPart(f"cpu-{number}", "cpu", share) for number in numbers]


def hold(database: Database, exec_id: str, parts: list[SlotPart], now: float, consumer: str = TRAINING) -> None:
    database.write(lambda c: holdings.hold(c, exec_id, "alice", consumer, parts, now))


def lines(database: Database, kind: str | None = None) -> list[tuple[object, ...]]:
    """Return (exec, consumer, slot, share, since, until) of every interval, oldest first."""
    found = database.read(lambda c: holdings.intervals(c, -1.0, 1e12, kind, 1000))
    return [tuple(row[name] for name in ("exec_id", "consumer", "slot", "share", "since", "until")) for row in found]


def totals(database: Database, begin: float, end: float, by: str, now: float = 1e6) -> dict[str, float]:
    return dict(database.read(lambda c: holdings.totals(c, begin, end, now, None, by)))


def test_only_changes_are_written_to_the_history(database: Database) -> None:
    hold(database, "local-1", cpus(0, 1), 100.0)
    hold(database, "local-1", cpus(1, 2), 110.0)
    hold(database, "local-1", cpus(1, 2), 120.0)
    hold(database, "local-1", [*cpus(1), *cpus(2, share=0.5)], 130.0)
    database.write(lambda c: holdings.release(c, "local-1", 140.0))
    database.write(lambda c: holdings.release(c, "local-1", 150.0))
    assert lines(database) == [
        ("local-1", TRAINING, "cpu-0", 1.0, 100.0, 110.0),
        ("local-1", TRAINING, "cpu-1", 1.0, 100.0, 140.0),
        ("local-1", TRAINING, "cpu-2", 1.0, 110.0, 130.0),
        ("local-1", TRAINING, "cpu-2", 0.5, 130.0, 140.0),
    ]


def test_a_change_of_plan_starts_a_new_interval(database: Database) -> None:
    hold(database, "local-1", cpus(0), 100.0)
    hold(database, "local-2", cpus(1), 100.0)
    database.write(lambda c: holdings.recount(c, {"local-1": "/local/night", "local-2": TRAINING}, 160.0))
    assert lines(database) == [
        ("local-1", TRAINING, "cpu-0", 1.0, 100.0, 160.0),
        ("local-2", TRAINING, "cpu-1", 1.0, 100.0, None),
        ("local-1", "/local/night", "cpu-0", 1.0, 160.0, None),
    ]
    assert totals(database, 0, 1e6, "consumer", now=200.0) == {TRAINING: 160.0, "/local/night": 40.0}


def test_totals_are_clipped_to_the_requested_time(database: Database) -> None:
    hold(database, "local-1", cpus(0, 1), 100.0)
    hold(database, "local-1", cpus(0), 200.0)
    hold(database, "local-2", cpus(1, share=0.5), 200.0)
    assert totals(database, 0, 1e6, "exec_id", now=300.0) == {"local-1": 300.0, "local-2": 50.0}
    assert totals(database, 150, 250, "exec_id", now=300.0) == {"local-1": 150.0, "local-2": 25.0}
    assert totals(database, 250, 400, "slot", now=300.0) == {"cpu-0": 50.0, "cpu-1": 25.0}
    assert totals(database, 0, 100, "user", now=300.0) == totals(database, 300, 400, "user", now=300.0) == {}
    assert list(totals(database, 0, 1e6, "exec_id", now=300.0)) == ["local-1", "local-2"], "largest total first"


def test_a_clock_that_is_set_back_gives_no_negative_time(database: Database) -> None:
    hold(database, "local-1", cpus(0), 100.0)
    database.write(lambda c: holdings.release(c, "local-1", 40.0))
    assert lines(database) == [("local-1", TRAINING, "cpu-0", 1.0, 100.0, 100.0)]
    hold(database, "local-2", cpus(0), 100.0)
    assert totals(database, 0, 1e6, "slot", now=50.0) == {}


def test_old_intervals_are_deleted_and_open_intervals_are_kept(database: Database) -> None:
    hold(database, "local-1", cpus(0, 1), 100.0)
    hold(database, "local-1", cpus(0), 200.0)
    assert database.write(lambda c: holdings.prune(c, 200.0 + holdings.KEPT)) == 0
    assert database.write(lambda c: holdings.prune(c, 201.0 + holdings.KEPT)) == 1
    assert [line[2] for line in lines(database)] == ["cpu-0"]


def test_intervals_end_at_the_reported_end_of_the_exec(database: Database) -> None:
    exec_id = new_exec(database)
    database.write(lambda c: execs.transition(c, exec_id, PENDING))
    database.write(lambda c: execs.begin_attempt(c, exec_id, cpus(0), TRAINING))
    (line,) = lines(database)
    ended = line[4] + 0.001  # type: ignore[operator]
    database.write(lambda c: execs.transition(c, exec_id, RUNNING))
    database.write(lambda c: execs.transition(c, exec_id, FINISHED, end_time=ended))
    assert [found[5] for found in lines(database)] == [ended]


def test_a_removed_exec_keeps_its_history(database: Database) -> None:
    exec_id = new_exec(database, "bob")
    database.write(lambda c: execs.begin_attempt(c, exec_id, cpus(0), TRAINING))
    database.write(lambda c: execs.remove(c, exec_id))
    ((found, _, slot, _, _, until),) = lines(database)
    assert (found, slot) == (exec_id, "cpu-0") and until is not None
    assert list(totals(database, 0, 1e12, "user", now=1e12)) == ["bob"]


def test_a_failed_write_changes_neither_row_nor_history(database: Database) -> None:
    exec_id = new_exec(database)
    database.write(lambda c: execs.begin_attempt(c, exec_id, cpus(0), TRAINING))

    def fails(connection) -> None:
        execs.hold(connection, exec_id, cpus(1, 2), TRAINING)
        raise OSError("the machine is gone")

    with pytest.raises(OSError, match="gone"):
        database.write(fails)
    row = database.read(lambda c: execs.get(c, exec_id))
    assert row is not None and row.slots == '["cpu-0"]'
    assert [(line[2], line[5]) for line in lines(database)] == [("cpu-0", None)]


STEPS = st.one_of(
    st.tuples(st.just("move"), st.sampled_from([PENDING, RUNNING, RECOVERING, FINISHED, KILLED, ERROR])),
    st.tuples(st.sampled_from(["begin", "hold"]), st.sets(st.integers(0, 3))),
    st.tuples(st.sampled_from(["release", "plan"]), st.sampled_from(["/a", "/b"])),
)


@pytest.mark.parametrize("where", ["sqlite"], indirect=True)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(STEPS, max_size=12))
def test_the_history_always_matches_the_row(database: Database, steps: list[tuple[str, object]]) -> None:
    exec_id = new_exec(database)
    for what, value in steps:
        row = database.read(lambda c: execs.get(c, exec_id))
        assert row is not None
        parts = cpus(*sorted(value)) if isinstance(value, set) else []
        match what:
            case "move":
                database.write(lambda c, to=value: execs.transition(c, exec_id, to))
            case "begin" if not row.terminal:
                database.write(lambda c, p=parts: execs.begin_attempt(c, exec_id, p, TRAINING))
            case "hold" if not row.terminal:
                database.write(lambda c, p=parts: execs.hold(c, exec_id, p, TRAINING))
            case "release":
                database.write(lambda c: execs.release(c, exec_id))
            case "plan":
                database.write(lambda c, to=value: holdings.recount(c, {exec_id: to}, 1e9))
        row = database.read(lambda c: execs.get(c, exec_id))
        assert row is not None
        assert sorted(json.loads(row.slots or "[]")) == [*database.read(lambda c: holdings.held(c, exec_id))]
        assert row.slots is None or row.state not in TERMINAL


def test_a_database_without_history_is_upgraded(where: Path | URL) -> None:
    old = Database(where)
    with old._write_engine.begin() as connection:
        config = Config()
        config.set_main_option("script_location", str(Path(upgrade.__file__).parent))
        config.attributes["connection"] = connection
        command.upgrade(config, "0002")
    old.close()
    opened = Database(where)
    opened.open()
    exec_id = new_exec(opened)
    opened.write(lambda c: execs.begin_attempt(c, exec_id, cpus(0), TRAINING))
    assert [line[2] for line in lines(opened)] == ["cpu-0"]
    opened.close()


def test_covered_time_and_start_of_the_present_gap_are_computed(database: Database) -> None:
    def had(since: float, now: float) -> tuple[float, float | None]:
        return database.read(lambda c: holdings.covered(c, "local-1", since, now))

    def hold(*slots: str, at: float) -> None:
        parts = [SlotPart(slot, "cpu") for slot in slots]
        database.write(lambda c: holdings.hold(c, "local-1", "ann", "/local/training", parts, at))

    assert had(0, 100) == (0, None)
    hold("cpu-0", "cpu-1", at=10)
    hold("cpu-1", at=20)
    assert had(0, 25) == (15, None)
    hold(at=30)
    assert had(0, 100) == (20, 30)
    hold("cpu-0", at=50)
    assert had(0, 100) == (70, None)
    assert had(25, 100) == (55, None), "time before the start must not count"
    hold(at=60)
    assert had(0, 100) == (30, 60)
