"""Fixtures that run every store test on an SQLite file and on a real PostgreSQL server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.engine import URL

from local_backend.store.database import Database

SYSTEMS = ["sqlite", pytest.param("postgresql", marks=pytest.mark.integration)]


@pytest.fixture(params=SYSTEMS)
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Path | URL:
    """The location of an empty database."""
    return location(request, tmp_path)


def location(request: pytest.FixtureRequest, folder: Path) -> Path | URL:
    """Return the location of an empty database of the system that the parameter names."""
    if request.param == "sqlite":
        return folder / "x.db"
    url: URL = request.getfixturevalue("postgres").new()
    return url


@pytest.fixture(scope="module", params=SYSTEMS)
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """An open database for all tests of a module."""
    opened = Database(location(request, tmp_path_factory.mktemp("shared")))
    opened.open()
    yield opened
    opened.close()


@pytest.fixture
def database(where: Path | URL) -> Iterator[Database]:
    """An open database."""
    opened = Database(where)
    opened.open()
    yield opened
    opened.close()
