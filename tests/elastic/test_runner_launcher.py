"""The driver's end of the channel to the runner of its job."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from local_backend.elastic.driver.launcher import RunnerLauncher
from local_backend.elastic.errors import EngineError


@pytest.mark.parametrize(
    ("read", "written"),
    [(True, b""), (False, b""), (True, b'{"event": "alloc'), (False, b'{"event": "alloc')],
    ids=["closed", "reset", "half a line", "half a line, then reset"],
)
def test_a_killed_runner_ends_the_channel_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, read: bool, written: bytes
) -> None:
    raised: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    ours, theirs = socket.socketpair()
    launcher = RunnerLauncher(ours)
    if read:
        theirs.recv(1024)  # otherwise the message of the driver stays unread, and the end resets the connection
    theirs.sendall(written)
    theirs.close()
    with pytest.raises(EngineError, match="the runner closed its channel"):
        launcher.allocation()
    assert raised == []
