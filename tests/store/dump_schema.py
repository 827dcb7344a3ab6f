"""Writes tests/data/schema_VERSION.sql: a small database of one schema version, as SQLite SQL.

    python tests/store/dump_schema.py 0004

Run it when you add a migration, for the version before the migration. Never change an existing dump: it stands for
the databases that users have.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import Boolean, Column, Connection, Float, Integer, MetaData, create_engine, insert

sys.path.insert(0, str(Path(__file__).parents[1]))

from workloads import workload

from dlicmd.contract.states import ERROR, FINISHED, PENDING, RUNNING, SUBMITTED
from local_backend.store.migrations import upgrade

DATA = Path(__file__).parent.parent / "data"
#: The rows of every table. Columns that a version lacks are left out; additional columns are filled.
ROWS: Mapping[str, list[dict[str, Any]]] = {
    "execs": [
        {
            "number": number, "id": f"local-{number}", "creator": "ada", "framework": "PyTorch", "app_name": "näme",
            "args": "--exec-start PyTorch ",
            "spec": workload(id=f"local-{number}", name="näme").to_json(),
            "data_source": None if number % 2 else '[{"type": "fs"}]', "elastic": number == 2, "num_worker": 1,
            "work_dir": "/work", "state": state, "attempt": number, "slots": slots, "create_time": 1_700_000_000.25,
            "start_time": None if state == PENDING else 1_700_000_001.5,
            "end_time": 1_700_000_100.75 if state in (FINISHED, ERROR) else None,
            "exit_code": {FINISHED: 0, ERROR: 3}.get(state), "message": "it's 100%" if state == ERROR else None,
            "reason": None, "stop_requested": False, "deleted": False, "pinned": 2 if number == 2 else None,
        }
        for number, state, slots in (
            (1, FINISHED, None), (2, RUNNING, '["cpu-0", "cpu-1"]'), (3, PENDING, None), (7, ERROR, None),
        )
    ],
    "events": [
        {
            "sequence": number, "exec_id": "local-1", "time": 1_700_000_000.5 + number, "state": state, "message": None,
            "id": number, "kind": "state", "data": json.dumps({"state": state}),
        }
        for number, state in enumerate((SUBMITTED, PENDING, RUNNING, FINISHED), 1)
    ],
    "sequences": [{"name": "exec", "last": 7}],
    "tokens": [{"hash": "0" * 64, "user": "ada", "expires": 4e9}],
    "documents": [{"name": "plans", "text": '{"name": "root"}'}],
    "holdings": [
        {"number": number, "exec_id": "local-2", "user": "ada", "consumer": "/local", "slot": f"cpu-{number - 1}",
         "kind": "cpu", "share": 0.5, "since": 1_700_000_001.5, "until": None}
        for number in (1, 2)
    ],
}


def migrate(connection: Connection, version: str) -> None:
    """Upgrade the tables to a version."""
    config = Config()
    config.set_main_option("script_location", str(Path(upgrade.__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, version)


def tables(connection: Connection) -> MetaData:
    """Return the present tables of the database."""
    metadata = MetaData()
    metadata.reflect(connection)
    return metadata


def _filled(column: Column[Any], number: int) -> Any:
    if column.nullable:
        return None
    if isinstance(column.type, Boolean):
        return False
    return number if isinstance(column.type, Integer | Float) else f"{column.name}-{number}"


def dump(version: str, target: Path) -> None:
    """Write the dump of a version."""
    database = target.with_suffix(".db")
    engine = create_engine(f"sqlite:///{database}")
    try:
        with engine.begin() as connection:
            migrate(connection, version)
        with engine.begin() as connection:
            for name, table in tables(connection).tables.items():
                if name == "alembic_version":
                    continue
                for number, row in enumerate(ROWS.get(name, [{}, {}]), 1):
                    values = {column.name: row.get(column.name, _filled(column, number)) for column in table.columns}
                    connection.execute(insert(table).values(values))
        engine.dispose()
        made = sqlite3.connect(database)
        target.write_text("\n".join(made.iterdump()) + "\n", encoding="utf-8")
        made.close()
    finally:
        database.unlink(missing_ok=True)


if __name__ == "__main__":
    for word in sys.argv[1:]:
        file = DATA / f"schema_{word}.sql"
        if file.exists():
            sys.exit(f"{file} is there already")
        dump(word, file)
