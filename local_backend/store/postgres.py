"""A PostgreSQL database. Several machines can read it, but only one server writes to it.

The session of the writer holds an advisory lock, and every write uses the connection that holds it. So a server that
has lost this connection, and with it the lock, can write nothing until it has the lock again.
"""

from __future__ import annotations

import os
import time
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from local_backend.store.errors import DatabaseError, Occupied

DRIVER = "postgresql+psycopg"
#: Key of the advisory lock, within the database: "dlicmd" in ASCII.
LOCK = 0x646C69636D64
#: Seconds to wait for the lock: the session of a killed server may still hold it for so long.
_PATIENCE = 5.0
_POLL = 0.1
#: Connections for reading beyond the pool: threads of the web server read at the same time.
_READERS = 40
#: The variable of libpq that holds a password. It is read once, because no job may inherit it.
PASSWORD = "PGPASSWORD"


def parse(text: str) -> URL:
    """Parse the address of a database: `postgresql+psycopg://user@host:port/name`. Raises ValueError with a sentence
    that does not repeat the text, because the text may hold a password."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        url = None
    if url is None or url.drivername not in (DRIVER, "postgresql") or not url.database:
        raise ValueError(f"the database must be {DRIVER}://USER@HOST:PORT/NAME")
    return url.set(drivername=DRIVER)


class Postgres:
    """A database of a PostgreSQL server. Raises DatabaseError when its driver is not installed."""

    def __init__(self, url: URL) -> None:
        password = os.environ.get(PASSWORD)
        self._url = url if url.password or not password else url.set(password=password)
        #: Name of the database in messages.
        self.name = self._url.render_as_string(hide_password=True)
        try:
            import psycopg  # noqa: F401
        except ImportError as problem:
            raise DatabaseError(f"{self.name} needs psycopg ({problem}): pip install 'dlicmd[postgres]'") from None

    def prepare(self) -> None:
        """Do nothing: the database exists, or the first connection reports that it does not."""

    @staticmethod
    def damage(_connection: Connection) -> str | None:
        """Return None: PostgreSQL checks for damage itself."""
        return None

    @staticmethod
    def overwrite(_engine: Engine) -> None:
        """Do nothing: the PostgreSQL server reuses the space of deleted rows itself."""

    def engine(self, read_only: bool) -> Engine:
        """Return an engine for reading, or the one for writing."""
        options: dict[str, Any] = {"pool_size": 5, "max_overflow": _READERS} if read_only else {
            "pool_size": 1, "max_overflow": 0,
        }
        engine = create_engine(self._url, pool_pre_ping=True, connect_args=self._connect_args(), **options)

        @event.listens_for(engine, "connect")
        def _configure(connection: Any, _record: object) -> None:
            if read_only:
                import psycopg

                # Several queries of one reader see the same state, as with SQLite.
                connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                connection.read_only = True
            else:
                _occupy(connection)

        return engine

    def _connect_args(self) -> dict[str, Any]:
        given = {} if "connect_timeout" in self._url.query else {"connect_timeout": 10}
        return given | {"application_name": "dlicmd"}


def _occupy(connection: Any) -> None:
    """Take the lock for as long as this session lives. Raises Occupied."""
    deadline = time.monotonic() + _PATIENCE
    # Without keepalives, the session of a machine that vanished could hold the lock for hours.
    for setting, seconds in (("idle", 15), ("interval", 5), ("count", 3)):
        connection.execute(f"SET tcp_keepalives_{setting} = {seconds}")
    while not connection.execute("SELECT pg_try_advisory_lock(%s)", (LOCK,)).fetchone()[0]:
        connection.rollback()
        if time.monotonic() > deadline:
            raise Occupied
        time.sleep(_POLL)
    connection.commit()
