"""Errors that the store raises when it cannot work."""

from __future__ import annotations

from sqlalchemy.exc import SQLAlchemyError


class DatabaseError(RuntimeError):
    """The database cannot be used; the message names it and what to do."""


class Occupied(SQLAlchemyError):
    """Another server works with this database; stop that one, or give this one a database of its own."""

    def __init__(self) -> None:
        super().__init__(self.__doc__)
