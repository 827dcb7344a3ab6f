"""The time limits for answers of a server."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from client_desk import Desk
from fake_server import BASE, FakeServer, Reply

import dlicmd
from dlicmd.sdk.errors import ConnectFailed, UsageProblem
from dlicmd.sdk.transport import Answer, Request


class Listening:
    """A transport that records the timeout of each request, and fails."""

    is_private = True

    def __init__(self) -> None:
        self.timeouts: list[float] = []

    def send(self, request: Request) -> Answer:
        self.timeouts.append(request.timeout)
        raise ConnectFailed("nobody")

    def close(self) -> None:
        pass


CALLS: list[tuple[Callable[[dlicmd.Client], object], float]] = [
    (lambda client: client.execs(), 60), (lambda client: client.logon("a", "b"), 60),
    (lambda client: client.result("w-1"), 300), (lambda client: client.impatient().exec("w-1"), 60),
]


def timeouts(**more: float) -> list[float]:
    way = Listening()
    client = dlicmd.Client(transport=way, retries=0, **more)
    for call, _ in CALLS:
        with pytest.raises(ConnectFailed):
            call(client)
    with pytest.raises(ConnectFailed):
        client.follow("w-1", wait=20)
    return way.timeouts


def test_timeouts_come_from_option_environment_or_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DLICMD_TIMEOUT", raising=False)
    assert timeouts() == [*(seconds for _, seconds in CALLS), 50]
    assert timeouts(timeout=7) == [7] * len(CALLS) + [27], "the requested wait of a follow call must be added"
    monkeypatch.setenv("DLICMD_TIMEOUT", "9")
    assert timeouts() == [9] * len(CALLS) + [29] and timeouts(timeout=7)[0] == 7
    for text in ("0", "soon", "-1", "86401", "1.5"):
        monkeypatch.setenv("DLICMD_TIMEOUT", text)
        with pytest.raises(UsageProblem, match="DLICMD_TIMEOUT"):
            timeouts()


def test_a_silent_server_is_reported_after_the_timeout(desk: Desk, fake: FakeServer, remote: list[str]) -> None:
    enough = threading.Event()

    def silent(_seen: object) -> Reply:
        enough.wait(60)
        return Reply(200, b"[]")

    fake.replies["GET", f"{BASE}/execs/"] = silent
    desk.environment["DLICMD_RETRIES"] = "0"
    try:
        done = desk.run("--exec-get-all", "--call-timeout", "1", *remote, "-o", "json")
    finally:
        enough.set()
    assert (done.code, done.error) == (8, "server.unreachable"), done
    for value in ("0", "x"):
        assert desk.run("--exec-get-all", "--call-timeout", value, *remote).code == 2
