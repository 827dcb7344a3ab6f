"""Migrations create exactly the tables of the program, from every earlier version, without loss of data."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from dump_schema import DATA, migrate, tables
from sqlalchemy import Engine, create_engine, insert, inspect, select
from sqlalchemy.engine import URL
from workloads import workload

from local_backend.store import execs
from local_backend.store.database import Database, DatabaseError
from local_backend.store.migrations import upgrade
from local_backend.store.schema import metadata


def test_migrations_create_the_schema(where: Path | URL) -> None:
    engine = migrated(where)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
    engine.dispose()


def test_a_new_database_equals_a_migrated_one(
    database: Database, where: Path | URL, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    other = request.getfixturevalue("postgres").new() if isinstance(where, URL) else tmp_path / "other.db"
    engine = migrated(other)
    found = [described(one) for one in (database._write_engine, engine)]
    engine.dispose()
    assert found[0] == found[1]
    assert {"alembic_version", "execs"} < found[0].keys()
    assert database.read(upgrade.version) == upgrade.VERSIONS[-1]


def migrated(where: Path | URL) -> Engine:
    """Create a database by running all migrations."""
    engine = create_engine(where if isinstance(where, URL) else f"sqlite:///{where}")
    with engine.begin() as connection:
        migrate(connection, upgrade.VERSIONS[-1])
    return engine


def described(engine: Engine) -> dict[str, Any]:
    """Return table → its description by the database, without the order of columns."""
    with engine.connect() as connection:
        inspector = inspect(connection)
        return {
            name: {
                "columns": {column["name"]: {**column, "type": str(column["type"])}
                            for column in inspector.get_columns(name)},
                "key": inspector.get_pk_constraint(name),
                "indexes": {index["name"]: {**index, "dialect_options": str({
                    option: str(value) for option, value in index.get("dialect_options", {}).items()
                })} for index in inspector.get_indexes(name)},
                "unique": sorted(inspector.get_unique_constraints(name), key=str),
                "checks": sorted(inspector.get_check_constraints(name), key=str),
                "foreign": inspector.get_foreign_keys(name),
            }
            for name in inspector.get_table_names()
        }


def test_the_list_of_versions_matches_the_scripts() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(upgrade.__file__).parent))
    scripts = list(ScriptDirectory.from_config(config).walk_revisions())
    assert [script.revision for script in reversed(scripts)] == list(upgrade.VERSIONS)


def test_only_a_database_of_an_earlier_version_imports_alembic(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from local_backend.store.database import Database\n"
        "database = Database(Path(sys.argv[1])); database.open(); database.close()\n"
        "print(sorted({'alembic', 'torch', 'numpy'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "x.db")]
    outputs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert outputs == ["[]\n", "[]\n"]
    (tmp_path / "x.db").unlink()
    old_database("0001", tmp_path / "x.db", tmp_path)
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "['alembic']\n"


def test_the_file_is_private_and_a_folder_is_refused(tmp_path: Path) -> None:
    database = Database(tmp_path / "x.db")
    database.open()
    database.close()
    assert (tmp_path / "x.db").stat().st_mode & 0o777 == 0o600
    (tmp_path / "folder").mkdir()
    with pytest.raises(DatabaseError, match="folder"):
        Database(tmp_path / "folder").open()


def test_a_path_may_contain_a_percent_sign(tmp_path: Path) -> None:
    (tmp_path / "100%s").mkdir()
    database = Database(tmp_path / "100%s" / "x.db")
    database.open()
    database.close()


def contents(engine: Engine) -> dict[str, list[dict[str, Any]]]:
    """Return table → its rows, ordered by primary key."""
    found = {}
    with engine.connect() as connection:
        for name, table in tables(connection).tables.items():
            rows = connection.execute(select(table).order_by(*table.primary_key.columns)).mappings()
            found[name] = [dict(row) for row in rows]
    del found["alembic_version"]
    return found


def old_database(version: str, where: Path | URL, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Create the database of a dump, and return its rows."""
    file = where if isinstance(where, Path) else folder / "dump.db"
    with sqlite3.connect(file) as made:
        made.executescript((DATA / f"schema_{version}.sql").read_text(encoding="utf-8"))
    made.close()
    dumped = create_engine(f"sqlite:///{file}")
    found = contents(dumped)
    dumped.dispose()
    if isinstance(where, URL):  # load the same rows into PostgreSQL tables of that version
        engine = create_engine(where)
        with engine.begin() as connection:
            migrate(connection, version)
        with engine.begin() as connection:
            for name, table in tables(connection).tables.items():
                if found.get(name):
                    connection.execute(insert(table), found[name])
        engine.dispose()
    return found


@pytest.mark.parametrize("version", upgrade.VERSIONS)
def test_every_version_is_upgraded_without_loss(version: str, where: Path | URL, tmp_path: Path) -> None:
    if version == upgrade.VERSIONS[-1] and not (DATA / f"schema_{version}.sql").exists():
        pytest.skip("the newest version has no dump until a newer version exists")
    before = old_database(version, where, tmp_path)
    assert len(before["execs"]) == 4
    database = Database(where)
    database.open()
    try:
        after = contents(database._write_engine)
        if version < "0004":  # version 0004 replaced tokens by signed ones; older tokens are invalid
            assert before.pop("tokens") and not after["tokens"]
        if version < "0008":  # before version 0008, every event was a state
            assert [json.loads(row["data"]) for row in after["events"]] == [
                {"state": row["state"]} for row in before.pop("events")
            ]
        if "0015" <= version < "0017":  # version 0017 moved two columns into a table
            for row in before["execs"]:
                del row["loss"], row["accuracy"]
        for name, rows in before.items():
            assert len(rows) == len(after[name]) > 0, name
            for old, new in zip(rows, after[name], strict=True):
                assert {key: new[key] for key in old} == old, name
        assert database.read(execs.damaged) is None
        assert database.write(execs.next_number) == 8
        with database._write_engine.connect() as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            assert compare_metadata(context, metadata) == []
    finally:
        database.close()


def test_the_values_of_older_execs_are_found(where: Path | URL, tmp_path: Path) -> None:
    """More execs than a migration reads at once have their parameters and metrics; damaged ones have none."""
    old_database("0016", where, tmp_path)
    engine = create_engine(where if isinstance(where, URL) else f"sqlite:///{where}")
    last = {"f1": {"value": 0.5, "step": 1}, "val_loss": {"value": 0.25, "step": 1}, "huge": {"value": 10**400}}
    with engine.begin() as connection:
        table = tables(connection).tables["execs"]
        row = dict(connection.execute(select(table).where(table.c.number == 1)).mappings().one())
        for number in range(11, 11 + 1200):
            spec = workload(id=f"local-{number}", arguments=("--lr", "0.1", "--name=x", "--api-token", "y"))
            connection.execute(insert(table).values(row | {
                "number": number, "id": f"local-{number}", "spec": spec.to_json(), "loss": 0.25,
                "progress": json.dumps({"accuracy": 0.5, "lastMetrics": last})}))
        for number, damage in ((8, {"spec": "{"}), (9, {"progress": "7"}), (10, {"progress": '{"lastMetrics": [1]}'})):
            connection.execute(insert(table).values(row | {"number": number, "id": f"local-{number}"} | damage))
    engine.dispose()
    database = Database(where)
    database.open()
    try:
        rows = [row for row in contents(database._write_engine)["exec_values"] if row["number"] >= 8]
    finally:
        database.close()
    assert [(row["kind"], row["name"], row["value"], row["text"]) for row in rows[-7:]] == [
        ("metric", "accuracy", 0.5, None), ("metric", "f1", 0.5, None), ("metric", "loss", 0.25, None),
        ("metric", "val_loss", 0.25, None), ("param", "api-token", None, "***"), ("param", "lr", 0.1, None),
        ("param", "name", None, "x")]
    assert [row["number"] for row in rows] == [number for number in range(11, 11 + 1200) for _ in range(7)]


def test_a_newer_database_is_not_changed(where: Path | URL) -> None:
    database = Database(where)
    database.open()
    database.write(lambda c: c.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'"))
    database.close()
    newer = Database(where)
    with pytest.raises(DatabaseError, match="newer version"):
        newer.open()
    assert newer.read(upgrade.version) == "9999"
    newer.close()
