"""Fixtures: a client user and fake servers."""

from __future__ import annotations

import os
import pty
import sys
from collections.abc import Callable, Iterator
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


@pytest.fixture
def on_a_terminal(desk: Desk) -> Callable[..., str]:
    """A function that runs dlicmd on a terminal of 80 columns and 24 lines, and returns its output with \\n as line
    ends. The command must succeed."""
    def run(*words: str) -> str:
        desk.environment |= {"COLUMNS": "80", "LINES": "24", "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"}
        ours, theirs = pty.openpty()
        with desk.start(*words, stdout=theirs) as process:
            os.close(theirs)
            shown = b""
            try:
                while chunk := os.read(ours, 4096):
                    shown += chunk
            except OSError:  # the command has closed the terminal
                pass
            assert process.wait() == 0, process.stderr and process.stderr.read()
        os.close(ours)
        return shown.decode().replace("\r\n", "\n")

    return run
