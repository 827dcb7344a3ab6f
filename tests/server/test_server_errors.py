"""Answers to failures of the database."""

from __future__ import annotations

import sqlite3

import pytest
from sqlalchemy.exc import InterfaceError, OperationalError, SQLAlchemyError

from local_backend.api.errors import database_failed


@pytest.mark.parametrize(("problem", "status", "said"), [
    (OperationalError("SELECT 1", {}, ConnectionError("the server closed\nthe connection")), 503,
     b"cannot connect to its database (the server closed the connection)"),
    (InterfaceError("SELECT 1", {}, ConnectionError("closed")), 503, b"cannot connect to its database (closed)"),
    (OperationalError("INSERT", {}, sqlite3.OperationalError("database or disk is full")), 507,
     b"cannot use its database (database or disk is full); nothing was changed"),
    (SQLAlchemyError("odd"), 507, b"cannot use its database"),
])
def test_a_lost_database_server_gives_status_503_and_a_full_disk_507(
    problem: SQLAlchemyError, status: int, said: bytes
) -> None:
    answer = database_failed({"type": "http", "headers": []}, problem)
    assert answer.status_code == status and said in answer.body
