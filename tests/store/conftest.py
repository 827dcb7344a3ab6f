"""Fixtures that run every store test on an SQLite file and on a real PostgreSQL server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.engine import URL

from local_backend.store.database import Database


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.integration)])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Path | URL:
    """The location of an empty database."""
    if request.param == "sqlite":
        return tmp_path / "x.db"
    url: URL = request.getfixturevalue("postgres").new()
    return url


@pytest.fixture
def database(where: Path | URL) -> Iterator[Database]:
    """An open database."""
    opened = Database(where)
    opened.open()
    yield opened
    opened.close()
