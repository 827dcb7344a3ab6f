"""The client shows the id of a request in the log of the server."""

from __future__ import annotations

from client_desk import Desk
from fake_server import BASE, FakeServer, Reply, exec_object


def test_the_request_id_is_shown_with_server_errors_and_debug_output(desk: Desk, local: FakeServer) -> None:
    local.execs["w-1"] = exec_object("w-1")
    path = ("GET", f"{BASE}/execs/w-1")
    local.replies[path] = Reply(500, b"Error 500: The server failed.\n", {"X-Request-ID": "ab12"})
    failed = desk.run("--exec-get", "w-1", "--debug-level", "debug")
    assert failed.code == 1 and "(HTTP 500, request ab12): The server failed." in failed.err
    assert "-> 500 (request ab12)" in failed.err
    local.replies[path] = Reply(500, b"", {"X-Request-ID": "\x1b[2J"})
    assert "(HTTP 500)" in desk.run("--exec-get", "w-1").err
    local.replies[path] = Reply(409, b"", {"X-Request-ID": "ab12"})
    assert "ab12" not in desk.run("--exec-get", "w-1").err
