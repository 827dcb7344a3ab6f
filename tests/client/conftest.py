"""Fixtures: a client user and fake servers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from client_desk import Desk
from fake_server import TOKEN, FakeServer
from manner_desk import ScriptedServer


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


@pytest.fixture
def local(desk: Desk) -> Iterator[FakeServer]:
    """A fake local backend with all extensions; `desk` finds it through `backend.json`."""
    with FakeServer("argv,follow,local-paths") as server:
        desk.embed(server)
        yield server


@pytest.fixture
def remote(fake: FakeServer) -> list[str]:
    """Options that address the fake server as a remote server."""
    return ["--rest-host", "127.0.0.1", "--rest-port", str(fake.port), "--http", "--jwt-token", TOKEN]


@pytest.fixture(scope="module")
def running() -> Iterator[ScriptedServer]:
    """A server with scripted answers, for all tests of a module."""
    with ScriptedServer() as server:
        yield server


@pytest.fixture
def server(running: ScriptedServer) -> ScriptedServer:
    """The server of the module, without the requests and answers of earlier tests."""
    running.clear()
    return running
