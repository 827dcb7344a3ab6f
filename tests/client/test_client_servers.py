"""`login`, `logout`, `whoami` and `server`: several servers with a token each, and the current one for verbs."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from client_desk import Desk
from fake_server import TOKEN, FakeServer, Reply, exec_object

OTHER_TOKEN = "fake-token-2"


@pytest.fixture
def far(fake: FakeServer, desk: Desk) -> FakeServer:
    """A remote server."""
    desk.environment |= {"DLICMD_USERNAME": "alice", "DLICMD_PASSWORD": "secret"}
    fake.execs["far-1"] = exec_object("far-1")
    return fake


@pytest.fixture
def other() -> Iterator[FakeServer]:
    """Another remote server, with another token."""
    with FakeServer() as server:
        server.tokens = {OTHER_TOKEN}
        server.execs["other-1"] = exec_object("other-1")
        answer = json.dumps({"accessToken": OTHER_TOKEN, "username": "alice", "role": "User"})
        server.replies["GET", "/auth/v1/logon"] = Reply(200, answer.encode())
        yield server


def name(server: FakeServer) -> str:
    return f"127.0.0.1:{server.port}"


def listed(desk: Desk, *words: str) -> list[str]:
    done = desk.run("ls", "-o", "json", *words)
    assert done.code == 0, done.err
    return [one["id"] for one in json.loads(done.out)]


def test_verbs_use_the_server_of_the_newest_login(
    desk: Desk, local: FakeServer, far: FakeServer, other: FakeServer,
) -> None:
    local.execs["local-1"] = exec_object("local-1")
    assert listed(desk) == ["local-1"]
    done = desk.run("login", f"http://{name(far)}/", "-o", "json")
    assert json.loads(done.out) == {"user": "alice", "role": None, "server": name(far)} and TOKEN not in done.err
    assert listed(desk) == ["far-1"]
    shown = desk.run("login", name(other), "--http")
    assert f"{name(other)} as alice (User)" in shown.out and listed(desk) == ["other-1"]
    # Long options and explicit servers are not affected.
    assert json.loads(desk.run("--exec-get-all", "-o", "json").out)[0]["id"] == "local-1"
    assert listed(desk, "--profile", "none") == ["local-1"]
    assert listed(desk, "--rest-host", "127.0.0.1", "--rest-port", str(far.port), "--http") == ["far-1"]
    assert far.seen[-1].headers["authorization"] == f"Bearer {TOKEN}"

    rows = json.loads(desk.run("server", "ls", "-o", "json").out)
    assert [(row["server"], row["current"]) for row in rows] == [
        ("local", False), (name(far), False), (name(other), True)]
    assert desk.run("server", "use", name(far)).code == 0 and listed(desk) == ["far-1"]
    assert desk.run("server", "use", "local").code == 0 and listed(desk) == ["local-1"]
    assert desk.run("server", "use", "nowhere", "-o", "json").error == "client.usage"
    assert desk.run("server", "drop", "local", "-o", "json").error == "client.usage"


def test_tokens_are_stored_for_the_owner_alone(desk: Desk, far: FakeServer) -> None:
    assert desk.run("login", f"http://{name(far)}").code == 0
    [file] = desk.home.rglob("servers.json")
    assert file.stat().st_mode & 0o777 == 0o600 and TOKEN in file.read_text()
    assert (desk.home / ".dlicmd").read_text() == TOKEN  # for the long options, a bare token
    file.chmod(0o644)
    assert listed(desk) == ["far-1"] and file.stat().st_mode & 0o777 == 0o600
    strange = {"current": "x", "servers": {"x": {"options": {"--wait": 1}, "user": ""}}}
    for broken in ("{", '{"current": null}', json.dumps(strange)):
        file.write_text(broken)
        assert desk.run("ls", "-o", "json").error == "token.file"
    file.unlink()
    file.symlink_to("/dev/null")
    assert desk.run("ls", "-o", "json").error == "token.file"


def test_a_failed_login_changes_nothing(desk: Desk, far: FakeServer, other: FakeServer) -> None:
    assert desk.run("login", f"http://{name(far)}").code == 0
    other.replies["GET", "/auth/v1/logon"] = Reply(401, b"Error 401: no\n")
    for server in (other, far):
        far.replies["GET", "/auth/v1/logon"] = Reply(401, b"Error 401: no\n")
        done = desk.run("login", f"http://{name(server)}", "-o", "json")
        assert (done.code, done.error) == (9, "server.denied")
        assert listed(desk) == ["far-1"] and (desk.home / ".dlicmd").read_text() == TOKEN
    assert [row["server"] for row in json.loads(desk.run("server", "-o", "json").out)] == ["local", name(far)]


def test_logout_forgets_one_server(desk: Desk, local: FakeServer, far: FakeServer, other: FakeServer) -> None:
    for server in (other, far):
        assert desk.run("login", f"http://{name(server)}").code == 0
    done = desk.run("logout", "-o", "json")
    assert json.loads(done.out) == {"server": name(far)} and not (desk.home / ".dlicmd").exists()
    [seen] = far.requests("POST", "/logoff")
    assert seen.headers["authorization"] == f"Bearer {TOKEN}" and listed(desk) == []
    assert desk.run("server", "use", name(other)).code == 0 and listed(desk) == ["other-1"]
    other.replies["POST", "/auth/v1/logoff"] = Reply(500, b"no")
    assert desk.run("logout", "-o", "json").error == "server.refused" and listed(desk) == []
    assert desk.run("logout").code == 0


@pytest.mark.parametrize("words", [
    ["login"], ["login", "ftp://h"], ["login", "h:99999"], ["login", "h", "--rest-host", "h"], ["login", "a b"],
])
def test_a_login_needs_one_server(desk: Desk, local: FakeServer, words: list[str]) -> None:
    desk.environment |= {"DLICMD_USERNAME": "alice", "DLICMD_PASSWORD": "secret"}
    assert desk.run(*words, "-o", "json").error == "client.usage"


def test_whoami_shows_user_role_and_server(desk: Desk, local: FakeServer, far: FakeServer) -> None:
    answer = Reply(200, json.dumps({"username": "alice", "role": "Admin"}).encode())
    for server in (local, far):
        server.replies["GET", "/v1/preauth/validateAuth"] = answer
    assert json.loads(desk.run("--whoami", "-o", "json").out) == {
        "user": "alice", "role": "Admin", "server": "local", "version": ""}
    assert desk.run("login", f"http://{name(far)}").code == 0
    assert desk.run("whoami").out == f"alice (Admin) on {name(far)}\n"


@pytest.mark.parametrize("verb", ["ls", "whoami", "logout"])
def test_the_token_of_a_server_is_sent_to_no_other(desk: Desk, far: FakeServer, other: FakeServer, verb: str) -> None:
    assert desk.run("login", f"http://{name(far)}").code == 0
    done = desk.run(verb, "--rest-host", "127.0.0.1", "--rest-port", str(other.port), "--http", "-o", "json")
    assert verb == "logout" or done.error == "server.denied"
    assert not [seen for seen in other.seen if TOKEN in str(seen.headers)]
    assert listed(desk) == ["far-1"]


def test_the_token_of_logon_works_for_verbs(desk: Desk, far: FakeServer) -> None:
    address = ["--rest-host", "127.0.0.1", "--rest-port", str(far.port), "--http"]
    assert desk.run("--logon", *address).code == 0
    assert listed(desk, *address) == ["far-1"]
