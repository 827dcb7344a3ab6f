"""`again` and `--exec-again` submit an exec once more."""

from __future__ import annotations

import json

from client_desk import Desk
from fake_server import BASE, FakeServer, Reply, exec_object

from dlicmd.contract import wire


def server_with(local: FakeServer, extensions: str) -> FakeServer:
    local.conf["DLICMD_EXTENSIONS"] = extensions
    local.execs |= {"w-1": exec_object("w-1", state="FINISHED"), "w-2": exec_object("w-2", state="ERROR")}
    local.replies["POST", f"{BASE}/execs/w-1/again"] = Reply(200, json.dumps(exec_object("w-2")).encode())
    return local


def test_the_changes_of_the_command_line_are_sent(desk: Desk, local: FakeServer) -> None:
    server = server_with(local, wire.EXT_AGAIN)
    assert desk.run("again", "w-1").out.strip() == "w-2"
    assert desk.run("again", "w-1", "--workers", "4", "--name", "wide", "--", "--epochs", "20").code == 0
    done = desk.run("--exec-again", "w-1", "--numWorker", "3")
    assert done.code == 0 and json.loads(done.out)["execId"] == "w-2"
    assert [json.loads(seen.body) for seen in server.requests("POST")] == [
        {}, {"name": "wide", "workers": 4, "arguments": ["--epochs", "20"]}, {"workers": 3}]


def test_other_data_is_sent_as_a_data_source(desk: Desk, local: FakeServer) -> None:
    server = server_with(local, wire.EXT_AGAIN)
    source = {"type": "fs", "location": {"volume": "lake", "paths": "mnist"}}
    assert desk.run("again", "w-1", "--data", "mnist").code == 0
    assert desk.run("again", "w-1", "--data", json.dumps(source)).code == 0
    assert desk.run("--exec-again", "w-1", "--data-source", json.dumps([source])).code == 0
    assert desk.run("again", "w-1", "--data", "{").code == 2
    assert [json.loads(seen.body)["dataSource"] for seen in server.requests("POST")] == [
        [{"type": "fs", "location": {"paths": "mnist"}}], [source], [source]]


def test_again_waits_for_the_outcome(desk: Desk, local: FakeServer) -> None:
    server_with(local, wire.EXT_AGAIN)
    assert desk.run("again", "w-1", "--wait").code == 3


def test_a_server_without_the_extension_gets_no_request(desk: Desk, local: FakeServer) -> None:
    server = server_with(local, "")
    assert desk.run("again", "w-1").code == 1 and server.requests("POST") == []


def test_wrong_command_lines_are_refused(desk: Desk, local: FakeServer) -> None:
    server = server_with(local, wire.EXT_AGAIN)
    for words in (("w-1", "--workers", "0"), ("w-1", "extra"), (), ("w-1", "--dry-run")):
        assert desk.run("again", *words).code == 2, words
    assert desk.run("--exec-again", "w-1", "--dry-run").code == 2
    assert server.requests("POST") == []
