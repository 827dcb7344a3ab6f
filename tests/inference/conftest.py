"""Fixtures of the tests of inference."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_gateway import FakeGateway


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    """A gateway that the test plays. Its folder has a short path, as a Unix socket needs."""
    with tempfile.TemporaryDirectory(prefix="gw") as folder:
        found = FakeGateway(Path(folder))
        yield found
        found.close()
