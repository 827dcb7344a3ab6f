"""Upgrades a database to the schema of this program.

Alembic is imported only when the database has an earlier version. New and up-to-date databases do without it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Connection, Engine, inspect

from local_backend.store.schema import metadata

#: Every version, oldest first. The last one is the schema in `schema.py`; a test compares the two.
VERSIONS = ("0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008", "0009", "0010", "0011", "0012", "0013",
            "0014", "0015", "0016", "0017", "0018")

#: Up to this version, secrets of jobs were stored in clear, in the database and in the files of the jobs.
IN_CLEAR = "0006"


class NewerDatabase(RuntimeError):
    """The database was written by a newer version of this program; use that version, or another DLICMD_HOME."""

    def __init__(self) -> None:
        super().__init__(self.__doc__)


def upgrade(engine: Engine, seal: Callable[[str], str] | None = None) -> str | None:
    """Create the tables, or apply the missing versions, all in one transaction. Return the version before.

    `seal` encrypts a secret so that it may be stored on disk: earlier versions stored some secrets in clear.

    Raises:
        NewerDatabase: the version of the database is not one of `VERSIONS`. Nothing is changed.
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
    """Return the version that the database states; None for an empty database."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    version: str | None = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    return version


def _create(connection: Connection) -> None:
    """Create all tables, and store the version as Alembic does. Raises the database's error if a table exists."""
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
    # Alembic reads `%` as the start of an interpolation.
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    config.attributes["seal"] = seal
    command.upgrade(config, "head")
