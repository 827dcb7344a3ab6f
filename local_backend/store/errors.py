"""Errors that the store raises when it cannot work."""

from __future__ import annotations

import sqlite3

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

#: PostgreSQL's code of this error.
_DISK_FULL = "53100"


class DatabaseError(RuntimeError):
    """The database cannot be used; the message names it and what to do."""


class Occupied(SQLAlchemyError):
    """Another server works with this database; stop that one, or give this one a database of its own."""

    def __init__(self) -> None:
        super().__init__(self.__doc__)


def is_full(problem: SQLAlchemyError) -> bool:
    """Return whether a write failed because the disk of the database is full."""
    original = problem.orig if isinstance(problem, DBAPIError) else None
    if isinstance(original, sqlite3.OperationalError):  # Python 3.10 does not tell the code of the error
        return str(original) == "database or disk is full"
    return getattr(original, "sqlstate", None) == _DISK_FULL
