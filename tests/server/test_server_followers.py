"""Many clients follow one log that grows fast: each gets every line once and in order, even if others stall."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from live_server import TOKEN, Live

from dlicmd.contract import wire
from dlicmd.contract.states import FINISHED, PENDING, RUNNING

FOLLOWERS, LINES, AT_ONCE = 10, 30_000, 50


def grow(file: Path, lines: int) -> None:
    """Write lines as a program does, in pieces that end anywhere in a line."""
    text = "".join(f"{number} loss 0.123\n" for number in range(lines))
    with file.open("w") as log:
        for start in range(0, len(text), AT_ONCE * 15):
            log.write(text[start : start + AT_ONCE * 15])
            log.flush()


def followed(live: Live, exec_id: str) -> list[str]:
    """Return every line that one follower gets until the exec is over."""
    cursor, found = "", []
    while True:
        news = live.call("GET", f"/execs/{exec_id}/follow?wait=20&cursor={cursor}").json()
        found += [line["text"] for line in news["lines"]]
        cursor = news["cursor"]
        if news["exec"]["state"] == FINISHED and not news["lines"]:
            return found


def stalled(live: Live, exec_id: str) -> socket.socket:
    """Open a connection that requests the whole log 50 times and reads nothing, so that its buffers fill up."""
    sock = socket.create_connection(("127.0.0.1", live.port))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    asked = (f"GET {wire.EXECS}/{exec_id}/follow?wait=20 HTTP/1.1\r\nHost: 127.0.0.1:{live.port}\r\n"
             f"Authorization: Bearer {TOKEN}\r\n\r\n").encode()
    sock.sendall(asked * 50)
    return sock


@pytest.mark.parametrize("others_stall", [0, 5])
def test_every_follower_gets_every_line_once_and_in_order(live: Live, others_stall: int) -> None:
    exec_id = live.submitted()
    file = live.paths(exec_id).capture("task12n-1", "stdout", False)
    file.parent.mkdir(parents=True, exist_ok=True)
    live.move(exec_id, PENDING, RUNNING)
    with ThreadPoolExecutor(FOLLOWERS + others_stall) as pool:
        found = [pool.submit(followed, live, exec_id) for _ in range(FOLLOWERS)]
        silent = [stalled(live, exec_id) for _ in range(others_stall)]
        grow(file, LINES)
        live.move(exec_id, FINISHED)
        expected = [f"{number} loss 0.123" for number in range(LINES)]
        assert all(one.result() == expected for one in found)
        for sock in silent:
            with closing(sock):
                assert sock.recv(12) == b"HTTP/1.1 200"
