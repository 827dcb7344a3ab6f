"""`last` in place of the id of an exec."""

from __future__ import annotations

import json

import pytest
from client_desk import Desk
from fake_server import BASE, FakeServer, Reply, exec_object

from dlicmd.contract.options import APP_COMMANDS, BY_NAME, EXEC_COMMANDS, Arity


def test_last_is_the_exec_with_the_latest_creation_time(desk: Desk, fake: FakeServer, remote: list[str]) -> None:
    times = {"w-9": "2023-10-27T16:27:29Z", "w-10": "2023-10-27T18:27:28.5+02:00", "w-3": "soon"}
    fake.execs = {name: exec_object(name, createTime=time) for name, time in times.items()}
    done = desk.run("--exec-get", "last", *remote)
    assert done.code == 0 and json.loads(done.out)["id"] == "w-9"
    fake.execs["w-10"]["createTime"] = times["w-9"]
    done = desk.run("--exec-get", "last", *remote)
    assert json.loads(done.out)["id"] == "w-10" and done.err == "dlicmd: last is w-10\n"
    assert [seen.target for seen in fake.requests("GET", "/execs/")] == [f"{BASE}/execs/"] * 2


def test_the_local_backend_returns_only_the_newest_exec(desk: Desk, local: FakeServer) -> None:
    local.execs["w-7"] = exec_object("w-7")
    assert json.loads(desk.run("--exec-get", "last").out)["id"] == "w-7"
    (seen,) = local.requests("GET", "/execs/")
    assert seen.target == f"{BASE}/execs/?limit=1&sort_by=id:desc"


def test_every_exec_command_accepts_last(desk: Desk, local: FakeServer) -> None:
    assert {"--exec-get", "--exec-stop", "--exec-delete", "--exec-trainresult", "--follow", "--wait"} <= EXEC_COMMANDS
    assert not EXEC_COMMANDS & {"--exec-start", "--exec-get-all", "--exec-delete-all", "--app-get"}
    local.execs["w-7"] = exec_object("w-7", state="FINISHED")
    local.news = [{"exec": local.execs["w-7"], "lines": [], "cursor": "c"}]
    for command in sorted(EXEC_COMMANDS - {"--exec-delete", "--exec-deploy", "--exec-resize", "--exec-verify",
                                           "--exec-again", "--exec-favorite", "--exec-note", "--exec-tag"}):
        local.seen.clear()
        done = desk.run(command, *["last"] * (2 if BY_NAME[command].arity is Arity.TWO else 1))
        assert done.err.startswith("dlicmd: last is w-7\n"), command
        assert all("last" not in seen.path for seen in local.seen), command
        assert any("w-7" in seen.target for seen in local.seen), command
    assert desk.run("--exec-delete", "last").out == "Delete exec w-7 succeed. HTTP:204 \n" and not local.execs


def test_every_application_command_accepts_last(desk: Desk, local: FakeServer) -> None:
    assert {"--app-get", "--app-wait", "--app-stop", "--app-outlogs"} <= APP_COMMANDS
    local.execs["w-7"] = exec_object("w-7", appId="app-7")
    for command in sorted(APP_COMMANDS):
        local.seen.clear()
        assert desk.run(command, "last").err.startswith("dlicmd: last is app-7\n"), command
        assert any("app-7" in seen.target for seen in local.seen), command


@pytest.mark.parametrize("answer", [[], [{}], [{"id": 3}], [{"id": ""}]])
def test_last_without_execs_is_an_error(desk: Desk, local: FakeServer, answer: list[object]) -> None:
    local.replies["GET", f"{BASE}/execs/"] = Reply(200, json.dumps(answer).encode())
    done = desk.run("--exec-stop", "last")
    assert done.code == 6 and done.out == "" and done.err.count("\n") == 1 and "--exec-start" in done.err
    assert not local.requests("POST")


def test_a_hostile_id_of_last_is_printed_and_sent_safely(desk: Desk, local: FakeServer) -> None:
    local.replies["GET", f"{BASE}/execs/"] = Reply(200, json.dumps([{"id": "../\x1b[31mx\n"}]).encode())
    done = desk.run("--exec-delete", "last")
    assert done.code == 6 and "\x1b" not in done.err and not local.requests("DELETE")
