"""Fixtures: a user of dlim, and a server with models."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "client"))
sys.path.insert(0, str(Path(__file__).parent))

from dlim_desk import DlimDesk, ModelServer


@pytest.fixture
def desk(tmp_path: Path) -> DlimDesk:
    return DlimDesk(tmp_path)


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as found:
        yield found


@pytest.fixture
def local(desk: DlimDesk, server: ModelServer) -> ModelServer:
    """The server as the local backend of the user."""
    desk.embed(server)
    return server
