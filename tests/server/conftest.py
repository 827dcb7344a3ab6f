"""Fixtures of the tests of the server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from argon2 import PasswordHasher
from cryptography.hazmat.primitives.asymmetric import rsa
from live_server import Live, settings_for

from local_backend import password_hash, signing

#: A server takes 0.2 s to end. The next test begins meanwhile.
_closing: list[threading.Thread] = []


@pytest.fixture(scope="session", autouse=True)
def _cheap() -> Iterator[None]:
    """Fast password hashes, and ready-made keys for the tokens of all servers in this process: making one takes as long
    as ten calls. `test_passwords_are_hashed_with_argon2id` checks the real hashes."""
    made = cache(partial(rsa.generate_private_key, 65537, 2048))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(password_hash, "_HASHER", PasswordHasher(time_cost=1, memory_cost=8, parallelism=1))
        patch.setattr(signing, "generate_private_key", lambda *_: made())
        yield


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Live]]:
    """A function that starts a server with the given settings."""
    running: list[Live] = []

    def begin(**more: Any) -> Live:
        running.append(Live(settings_for(tmp_path / f"home{len(running)}", **more)))
        return running[-1]

    yield begin
    for live in running:
        _closing.append(threading.Thread(target=live.close))
        _closing[-1].start()


@pytest.fixture(scope="session", autouse=True)
def _closed() -> Iterator[None]:
    """Wait for the servers of all tests to end."""
    yield
    for thread in _closing:
        thread.join()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server for tests that leave nothing on it, such as the many refused submissions."""
    running = Live(settings_for(tmp_path_factory.mktemp("shared") / "home"))
    yield running
    running.close()


@pytest.fixture
def live(start: Callable[..., Live]) -> Live:
    """A server with default settings."""
    return start()


@pytest.fixture
def lake(live: Live) -> Path:
    """DLI_DATA_FS with two folders, and a volume with one."""
    for folder in ("mnist", "other", "my dir"):
        (live.settings.data_fs / folder).mkdir(parents=True)
    (live.settings.paths.volumes / "deep_lake" / "train").mkdir(parents=True)
    return live.settings.data_fs
