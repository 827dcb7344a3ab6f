"""Fixtures of the tests of the console's pages."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from argon2 import PasswordHasher

from local_backend import password_hash
from local_backend.console.site import Console

# The server of these tests is the one of the tests of the server.
sys.path.insert(0, str(Path(__file__).parent.parent / "server"))

from live_server import Live, settings_for

_closing: list[threading.Thread] = []


@pytest.fixture(scope="session", autouse=True)
def _cheap() -> Iterator[None]:
    """Fast password hashes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(password_hash, "_HASHER", PasswordHasher(time_cost=1, memory_cost=8, parallelism=1))
        yield
    for thread in _closing:
        thread.join()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Live]]:
    """A function that starts a server with its console and the given settings."""
    running: list[Live] = []

    def begin(**more: Any) -> Live:
        running.append(Live(settings_for(tmp_path / f"home{len(running)}", **more), pages=Console()))
        return running[-1]

    yield begin
    for live in running:
        _closing.append(threading.Thread(target=live.close))
        _closing[-1].start()


@pytest.fixture
def live(start: Callable[..., Live]) -> Live:
    """A server with default settings."""
    return start()


@pytest.fixture
def team(start: Callable[..., Live]) -> Live:
    """A server for several users, whose jobs are not isolated."""
    return start(embedded=False, jobs_share_server_account=True)
