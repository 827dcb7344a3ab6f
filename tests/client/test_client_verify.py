"""`--exec-verify` runs an exec again to verify it."""

from __future__ import annotations

import json

from client_desk import Desk
from fake_server import BASE, FakeServer, Reply, exec_object

from dlicmd.contract import wire


def server_with(local: FakeServer, extensions: str) -> FakeServer:
    local.conf["DLICMD_EXTENSIONS"] = extensions
    local.execs |= {"w-1": exec_object("w-1", state="FINISHED"), "w-2": exec_object("w-2", state="ERROR")}
    local.replies["POST", f"{BASE}/execs/w-1/verify"] = Reply(200, json.dumps(exec_object("w-2")).encode())
    return local


def test_exec_verify_prints_the_new_exec_and_sends_the_steps(desk: Desk, local: FakeServer) -> None:
    server = server_with(local, wire.EXT_VERIFY)
    done = desk.run("--exec-verify", "w-1")
    assert done.code == 0 and json.loads(done.out)["execId"] == "w-2"
    del local.execs["w-2"]
    assert desk.run("--exec-verify", "last", "--steps", "7").code == 0
    assert [seen.query for seen in server.requests("POST")] == [{"steps": ["20"]}, {"steps": ["7"]}]


def test_exec_verify_waits_for_the_outcome(desk: Desk, local: FakeServer) -> None:
    server_with(local, wire.EXT_VERIFY)
    assert desk.run("--exec-verify", "w-1", "--wait").code == 3


def test_a_server_without_the_extension_gets_no_request(desk: Desk, local: FakeServer) -> None:
    server = server_with(local, "")
    done = desk.run("--exec-verify", "w-1")
    assert done.code == 1 and "verify=20" in done.err and server.requests("POST") == []


def test_invalid_steps_are_refused(desk: Desk, local: FakeServer) -> None:
    server = server_with(local, wire.EXT_VERIFY)
    assert desk.run("--exec-verify", "w-1", "--steps", "none").code == 2
    assert desk.run("--exec-verify").code == 2
    assert server.requests("POST") == []
