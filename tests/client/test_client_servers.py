"""`login`, `logout`, `whoami` and `server`: several servers with a token each, and the current one for verbs."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from client_desk import Desk
from fake_server import TOKEN, FakeServer, Reply, exec_object
from screen_desk import Screen
from support import eventually

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
    assert not (desk.home / ".dlicmd").exists(), "scripts of the original client send this token to any server"
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
        assert listed(desk) == ["far-1"]
    assert [row["server"] for row in json.loads(desk.run("server", "-o", "json").out)] == ["local", name(far)]


def test_logout_forgets_one_server(desk: Desk, local: FakeServer, far: FakeServer, other: FakeServer) -> None:
    for server in (other, far):
        assert desk.run("login", f"http://{name(server)}").code == 0
    done = desk.run("logout", "-o", "json")
    assert json.loads(done.out) == {"server": name(far)}
    [seen] = far.requests("POST", "/logoff")
    assert seen.headers["authorization"] == f"Bearer {TOKEN}" and listed(desk) == []
    assert desk.run("server", "use", name(other)).code == 0 and listed(desk) == ["other-1"]
    other.replies["POST", "/auth/v1/logoff"] = Reply(500, b"no")
    assert desk.run("logout", "-o", "json").error == "server.refused" and listed(desk) == []
    assert desk.run("logout").code == 0


def test_logout_takes_the_name_of_a_server(desk: Desk, local: FakeServer, far: FakeServer, other: FakeServer) -> None:
    for server in (other, far):
        assert desk.run("login", f"http://{name(server)}").code == 0
    done = desk.run("logout", name(other), "-o", "json")
    assert json.loads(done.out) == {"server": name(other)}, done.err
    [seen] = other.requests("POST", "/logoff")
    assert seen.headers["authorization"] == f"Bearer {OTHER_TOKEN}" and not far.requests("POST", "/logoff")
    assert listed(desk) == ["far-1"], "another server than the current one is logged off"
    assert desk.run("logout", name(other), "-o", "json").error == "client.usage"
    assert desk.run("logout", "local").code == 0 and listed(desk) == ["far-1"]


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


def where(server: FakeServer) -> list[str]:
    return ["--rest-host", "127.0.0.1", "--rest-port", str(server.port), "--http"]


@pytest.mark.parametrize("how", ["login", "--logon"])
def test_long_options_send_the_token_of_the_server_that_they_name(
    desk: Desk, far: FakeServer, other: FakeServer, how: str,
) -> None:
    for server in (far, other):
        done = desk.run("login", f"http://{name(server)}") if how == "login" else desk.run("--logon", *where(server))
        assert done.code == 0
    for server, token in ((far, TOKEN), (other, OTHER_TOKEN)):
        assert desk.run("--exec-get-all", *where(server)).code == 0
        assert server.seen[-1].headers["authorization"] == f"Bearer {token}"


@pytest.mark.parametrize("how", ["login", "--logon"])
def test_long_options_send_no_token_of_another_server(
    desk: Desk, far: FakeServer, other: FakeServer, how: str,
) -> None:
    assert (desk.run("login", f"http://{name(far)}") if how == "login" else desk.run("--logon", *where(far))).code == 0
    for words in (["--exec-get-all"], ["--logoff"]):
        done = desk.run(*words, *where(other), "-o", "json")
        assert words == ["--logoff"] or (done.code, done.error) == (9, "server.denied")
    assert not other.seen
    assert desk.run("--exec-get-all", *where(far)).code == 0, "a logoff elsewhere keeps the token of this server"


def test_a_failed_logon_forgets_the_token_of_its_server_alone(desk: Desk, far: FakeServer, other: FakeServer) -> None:
    for server in (far, other):
        assert desk.run("--logon", *where(server)).code == 0
    other.replies["GET", "/auth/v1/logon"] = Reply(401, b"Error 401: no\n")
    assert desk.run("--logon", *where(other)).code == 9
    assert desk.run("--exec-get-all", *where(other)).code == 9
    assert desk.run("--exec-get-all", *where(far)).code == 0


def test_the_original_client_sends_the_token_of_its_file(desk: Desk, far: FakeServer, other: FakeServer) -> None:
    assert desk.run("login", f"http://{name(far)}").code == 0
    desk.environment["DLICMD_COMPAT"] = "wmla"
    assert desk.run("--exec-get-all", *where(far)).code == 0, "without a file, the token of a login to this server"
    assert far.seen[-1].headers["authorization"] == f"Bearer {TOKEN}"
    (desk.home / ".dlicmd").write_text(OTHER_TOKEN)
    assert desk.run("--exec-get-all", *where(other)).code == 0
    assert other.seen[-1].headers["authorization"] == f"Bearer {OTHER_TOKEN}"


@pytest.mark.parametrize(("reply", "error"), [
    (Reply(404, b"<html>not here</html>"), "server.refused"), (Reply(200, b"<html>shop</html>"), "server.refused"),
])
def test_a_password_is_not_sent_to_a_foreign_web_server(desk: Desk, far: FakeServer, reply: Reply, error: str) -> None:
    far.replies["GET", "/platform/rest/deeplearning/v1/conf"] = reply
    done = desk.run("login", f"http://{name(far)}", "-o", "json")
    assert (done.code, done.error) == (1, error)
    assert not far.requests("GET", "/logon") and not any("authorization" in seen.headers for seen in far.seen)


@pytest.mark.parametrize("words", [["login", "http://127.0.0.1:1"], ["--logon", "--rest-host", "127.0.0.1",
                                                                        "--rest-port", "1", "--http"]])
def test_an_unreachable_server_is_reported_before_a_password_is_asked_for(desk: Desk, words: list[str]) -> None:
    screen = Screen(desk, *words, DLICMD_RETRIES="0")
    assert screen.ended() == 8 and "Username" not in screen.text


def expire(server: FakeServer, *kept: str) -> None:
    """Let the server deny the token that it has issued, unless it is in `kept`, and issue another one."""
    server.tokens = {OTHER_TOKEN, *kept}
    answer = json.dumps({"accessToken": OTHER_TOKEN, "username": "alice", "role": "User"})
    server.replies["GET", "/auth/v1/logon"] = Reply(200, answer.encode())


@pytest.mark.parametrize("verb", ["follow", "wait"])
def test_a_logon_that_expires_meanwhile_leads_to_the_next_command(
    desk: Desk, local: FakeServer, far: FakeServer, verb: str,
) -> None:
    assert desk.run("login", f"http://{name(far)}").code == 0
    del desk.environment["DLICMD_PASSWORD"]
    waiting = Screen(desk, verb, "far-1")
    eventually(lambda: len(far.requests("GET", "/execs/far-1")) > 1, "dlicmd asks for the job")
    expire(far)
    assert waiting.ended() == 9
    assert "dlicmd login" in waiting.text and f"dlicmd {verb} far-1" in waiting.text
    done = desk.run("ls")
    assert done.code == 9 and done.err.count("\n") == 1 and done.err.endswith(": dlicmd login\n")


@pytest.mark.parametrize("verb", ["follow", "wait"])
def test_an_expired_logon_is_renewed_with_the_credentials_of_the_environment(
    desk: Desk, local: FakeServer, far: FakeServer, verb: str,
) -> None:
    far.execs["far-1"]["state"] = "FINISHED"
    assert desk.run("login", f"http://{name(far)}").code == 0
    expire(far)
    desk.environment["DLICMD_USERNAME"] = "bob"
    assert desk.run(verb, "far-1").code == 9, "another user was logged on"
    desk.environment["DLICMD_USERNAME"] = "alice"
    assert desk.run(verb, "far-1").code == 0
    del desk.environment["DLICMD_PASSWORD"]
    assert listed(desk) == ["far-1"], "the new token was not stored"


def test_an_expired_logon_takes_the_token_of_a_newer_login(desk: Desk, local: FakeServer, far: FakeServer) -> None:
    assert desk.run("login", f"http://{name(far)}").code == 0
    password = desk.environment.pop("DLICMD_PASSWORD")
    follower = Screen(desk, "follow", "far-1")
    eventually(lambda: len(far.requests("GET", "/execs/far-1")) > 1, "dlicmd asks for the job")
    expire(far, TOKEN)
    desk.environment["DLICMD_PASSWORD"] = password
    assert desk.run("login", f"http://{name(far)}").code == 0
    far.tokens.discard(TOKEN)
    far.execs["far-1"]["state"] = "FINISHED"
    assert follower.ended() == 0, follower.text
