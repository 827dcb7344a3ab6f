"""Brings a database to the schema of this program.

Alembic is imported only when there are earlier versions to leave: a new server does without it, as an idle one does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Connection, Engine, inspect

from local_backend.store.schema import metadata

#: Every version, oldest first; the last one is what `schema.py` describes (a test compares what both make).
VERSIONS = ("0001", "0002", "0003", "0004", "0005", "0006", "0007")

#: Up to this one, secrets of jobs lay in the database and in the files of the jobs in clear.
IN_CLEAR = "0006"


class NewerDatabase(RuntimeError):
    """The database was written by a newer version of this program; use that version, or another DLICMD_HOME."""

    def __init__(self) -> None:
        super().__init__(self.__doc__)


def upgrade(engine: Engine, seal: Callable[[str], str] | None = None) -> str | None:
    """Create the tables, or apply the versions that the database lacks, all in one transaction. The version before.

    `seal` makes of a secret what may lie on a disk: earlier versions kept some in clear.

    Raises:
        NewerDatabase: its version is not one of `VERSIONS`. Nothing is changed.
    """
    with engine.begin() as connection:
        found = version(connection)
        if found == VERSIONS[-1]:
            return found
        if found is not None and found not in VERSIONS:
            raise NewerDatabase
        if found is None:
            _create(connection)
        else:
            _apply(connection, seal)
    return found


def version(connection: Connection) -> str | None:
    """The version that the database says it has; None for an empty one."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    version: str | None = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    return version


def _create(connection: Connection) -> None:
    """All tables at once, and the version as Alembic keeps it. Raises what the database raises when one is there."""
    metadata.create_all(connection, checkfirst=False)
    connection.exec_driver_sql(
        "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, "
        "CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
    )
    connection.exec_driver_sql(f"INSERT INTO alembic_version (version_num) VALUES ('{VERSIONS[-1]}')")


def _apply(connection: Connection, seal: Callable[[str], str] | None) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    # Alembic reads a % as the start of an interpolation.
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    config.attributes["seal"] = seal
    command.upgrade(config, "head")
