"""Fixtures for the download tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fetching_desk import Desk
from range_server import Site, serving


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A desk with an empty cache."""
    return Desk(tmp_path)


@pytest.fixture
def site() -> Iterator[Site]:
    """A web server without files."""
    with serving(Site()) as found:
        yield found
