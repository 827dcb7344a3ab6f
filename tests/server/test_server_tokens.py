"""Tokens for programs: scopes, ends, revocation, records, and who may manage them."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from live_server import TOKEN, Answer, Live, basic, quoted, route_table, settings_for
from sqlalchemy import update
from support import PATIENCE, eventually

from dlicmd.contract import dlim, wire
from dlicmd.contract.states import KILLED, PENDING
from local_backend.api import bodies
from local_backend.api.guard import OPEN_PATHS
from local_backend.services.access import SCOPES
from local_backend.store import schema, users

JSON = {"Content-Type": "application/json"}
DAY = 86_400


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    live = Live(settings_for(tmp_path_factory.mktemp("team") / "home", embedded=False))
    live.bob, live.root = live.add_user("bob"), live.add_user("root", "admin")  # type: ignore[attr-defined]
    yield live
    live.close()


def ask(live: Live, token: str, **body: Any) -> Answer:
    found = {"name": "ci", "scope": "read", "expiresIn": DAY, **body}
    return live.call("POST", "/tokens", json.dumps(found).encode(), JSON, token=token)


def made(live: Live, token: str, **body: Any) -> str:
    answer = ask(live, token, **body)
    assert answer.status == 200 and answer.headers["cache-control"] == "no-store", answer.text
    return str(answer.json()["token"])


def opens(live: Live, token: str) -> bool:
    return live.call("GET", "/conf", token=token).status == 200


def test_a_token_is_accepted_in_every_form_and_stored_as_a_hash(team: Live) -> None:
    token = made(team, team.bob, name="forms")
    for headers in ({"Authorization": f"Bearer {token}"}, {"X-Auth-Token": token}, basic("bob", token)):
        assert team.call("GET", "/execs", token=None, headers=headers).status == 200
    found = team.call("GET", wire.VALIDATE, token=token, base="").json()
    assert (found["username"], found["role"]) == ("bob", "User") and found["exp"] - found["iat"] in (DAY, DAY + 1)
    stored = b"".join(path.read_bytes() for path in team.settings.home.glob("*.db*"))
    assert token.encode() not in stored
    assert not opens(team, token + "x") and not opens(team, token[:-1]) and not opens(team, "dlit_")


_OF_MODEL = wire.MODELS + "/{m}/hypersearch"
#: Calls that a token with the scope `submit` may make beside those that only read.
SUBMITS = {
    ("POST", wire.EXECS), ("POST", wire.CHECK), ("POST", wire.EXECS + "/{exec_id}/stop"),
    ("POST", wire.EXECS + "/{exec_id}/verify"), ("POST", wire.EXECS + "/{exec_id}/again"),
    ("PUT", wire.APPLICATIONS + "/{app_id}/stop"),
    ("POST", wire.STOP_MANY), ("POST", wire.DATA_PREVIEW), ("POST", wire.DATA_FILES),
    ("POST", wire.LABELS), ("POST", wire.VIEWS), ("DELETE", wire.VIEWS + "/{name:path}"),
    ("POST", wire.DEFINITIONS), ("POST", wire.HARDWARE), ("POST", wire.PLANS_OF_EXPERIMENTS),
    ("POST", wire.PLANS_OF_EXPERIMENTS + "/check"), ("POST", wire.PLANS_OF_EXPERIMENTS + "/{name:path}/run"),
    ("POST", wire.PLANS_OF_EXPERIMENTS + "/{name:path}/runs/{run}"),
    ("POST", wire.SEARCHES), *(("PUT", f"{wire.SEARCHES}/{{n}}{action}") for action in ("", "/force", "/restart")),
    ("POST", _OF_MODEL), *(("PUT", f"{_OF_MODEL}/{{t}}/{action}") for action in ("stop", "force", "restart")),
}
#: Calls that send requests to models, and calls about models that the scope `submit` permits: "METHOD path".
RUNS = re.compile(r"POST .*(/inference/\{m\}|/edimodels/\{m\}/inference)")
SERVES = re.compile(
    r"POST /dlim/v1/(model|model/\{m\}|deployment/model|deployment/model/\{m\}|modelstore|modelstore/\{name\}/deploy)"
    r"|POST .*/edimodels/(new|\{m\})"
    r"|PUT .*/(model|edimodels)/\{m\}(/operation)?/(start|stop|promote|rollback|traffic)")
BODIES: dict[tuple[str, str], Any] = {
    ("PUT", wire.EXECS + "/{exec_id}/slots"): {"slots": 1}, ("POST", wire.STOP_MANY): {"ids": ["local-1"]},
    ("PUT", wire.PLAN_TREE): {"plans": 3}, ("PUT", wire.PLAN + "/{name:path}"): {},
    ("POST", wire.CONNECTIONS): {"name": "c", "type": "none"}, ("POST", wire.USERS): {"name": "x"},
    ("PUT", wire.USERS + "/{name}/password"): {"password": "a new secret", "oldPassword": "x"},
    ("PUT", wire.CONNECTIONS + "/{name:path}"): {"values": {}}, ("POST", wire.LABELS): {"ids": ["local-1"]},
    ("POST", wire.VIEWS): {"name": "x"},
    ("POST", wire.DATA_PREVIEW): {"dataSource": [{"type": "fs"}]},
    ("POST", wire.DEFINITIONS): {"name": "x"}, ("POST", wire.HARDWARE): {"name": "x", "hardwareSpec": {}},
    ("POST", wire.PLANS_OF_EXPERIMENTS): {"name": "x"}, ("POST", wire.PLANS_OF_EXPERIMENTS + "/check"): {"name": "x"},
    ("POST", wire.TOKENS): {"name": "more", "scope": "admin", "expiresIn": DAY},
}


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("owner", ["bob", "root"])
def test_a_scope_is_checked_in_every_call(start: Callable[..., Live], scope: str, owner: str) -> None:
    live = start(embedded=False)
    for name in ("bob", "root"):
        live.add_user(name, "admin" if name == "root" else "user")
    if scope == "admin" and owner == "bob":
        assert ask(live, TOKEN, scope=scope, user="bob").error == (403, "auth.admin_only")
        return
    exec_id = live.submitted(token=made(live, TOKEN, name="first", scope="submit", user=owner))
    tried, token = 0, ""
    for path, methods in route_table(live).items():
        for method in methods - {"GET", "HEAD"}:
            if path in OPEN_PATHS or path in (wire.LOGOFF, wire.LINK):
                continue
            filled = path
            for part, value in (("{exec_id}", exec_id), ("{app_id}", exec_id), ("{name:path}", "p"), ("{name}", "bob"),
                                ("{run}", "1")):
                filled = filled.replace(part, quoted(value))
            body = json.dumps(BODIES[method, path]).encode() if (method, path) in BODIES else b""
            token = token or made(live, TOKEN, name=f"t{tried}", scope=scope, user=owner)
            answer = live.call(method, filled, body, JSON if body else {}, token=token, base="")
            refused = answer.error in {(403, "auth.scope"), (403, "auth.wrong_password")}
            call = f"{method} {path}"
            submits = (method, path) in SUBMITS or SERVES.fullmatch(call) or RUNS.fullmatch(call)
            runs = RUNS.fullmatch(call) and path.startswith(dlim.BASE)
            permitted = bool(scope == "admin" or (scope == "submit" and submits) or (scope == "inference" and runs))
            assert refused != permitted, (method, path, answer)
            if permitted:
                token = ""  # the call may have ended it
            tried += 1
    assert tried > 20


def test_a_token_reads_own_execs_only_without_the_scope_admin(start: Callable[..., Live]) -> None:
    live = start(embedded=False)
    bob = live.add_user("bob")
    exec_id = live.submitted(token=bob)
    for scope, status in (("read", 400), ("submit", 400), ("admin", 200)):
        token = made(live, TOKEN, name=scope, scope=scope)
        assert live.call("GET", f"/execs/{exec_id}", token=token).status == status
        code = live.call("POST", f"/execs/{exec_id}/stop", token=token).error[1]
        assert code == {"read": "auth.scope", "submit": "exec.not_found", "admin": ""}[scope]
    exec_id = live.submitted(token=bob)
    mine = made(live, bob, name="mine", scope="submit")
    assert live.call("GET", f"/execs/{exec_id}", token=mine).status == 200
    assert live.call("POST", f"/execs/{exec_id}/stop", token=mine).status == 204
    assert live.call("DELETE", f"/execs/{exec_id}", token=mine).error == (403, "auth.scope")


def test_an_upload_without_permission_is_refused_before_it_arrives(
    team: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = made(team, team.bob, name="upload")
    monkeypatch.setattr(bodies, "PATIENCE", 0.1)  # for a body that never begins, before the server answers
    with socket.create_connection(("127.0.0.1", team.port), PATIENCE) as sock:
        sock.sendall(f"POST {wire.EXECS}?args=x HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
                     f"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: {2**30}\r\n\r\n".encode())
        assert sock.recv(12) == b"HTTP/1.1 403"


def test_a_token_ends_when_it_expires_is_revoked_or_loses_its_user(start: Callable[..., Live]) -> None:
    live = start(embedded=False)
    bob = live.add_user("bob")
    expired, revoked, itself, last = (made(live, bob, name=name) for name in ("a", "b", "c", "d"))
    live.database.write(lambda c: c.execute(
        update(schema.tokens).where(schema.tokens.c.name == "a").values(expires=time.time() - 1)))
    assert live.call("DELETE", "/tokens/b", token=bob).status == 204
    assert live.call("POST", wire.LOGOFF, token=itself, base="").status == 200
    assert [opens(live, token) for token in (expired, revoked, itself, last)] == [False, False, False, True]
    assert [one["name"] for one in live.call("GET", "/tokens", token=bob).json()] == ["d"]
    live.database.write(lambda c: users.remove(c, "bob", "alice"))
    assert not opens(live, last)


def test_a_former_administrator_loses_the_rights_of_a_token(start: Callable[..., Live]) -> None:
    live = start(embedded=False)
    root = live.add_user("root", "admin")
    token = made(live, root, scope="admin")
    assert live.call("GET", "/users", token=token).status == 200
    live.database.write(lambda c: c.execute(update(schema.users).values(role="user")))
    assert live.call("GET", "/users", token=token).error == (403, "auth.admin_only")


def test_users_manage_their_own_tokens_and_administrators_all(start: Callable[..., Live]) -> None:
    live = start(embedded=False)
    bob, carol, root = live.add_user("bob"), live.add_user("carol"), live.add_user("root", "admin")
    made(live, bob)
    assert ask(live, bob).error == (409, "token.exists")
    assert ask(live, bob, scope="admin", name="x").error == (403, "auth.admin_only")
    assert ask(live, carol, user="bob").error == (403, "auth.admin_only")
    assert live.call("GET", "/tokens?user=bob", token=carol).error == (403, "auth.admin_only")
    assert live.call("DELETE", "/tokens/ci?user=bob", token=carol).error == (403, "auth.admin_only")
    assert live.call("DELETE", "/tokens/ci", token=carol).error == (404, "token.not_found")
    assert ask(live, root, user="nobody").error == (404, "user.not_found")
    (found,) = live.call("GET", "/tokens?user=bob", token=root).json()
    assert {"name": "ci", "user": "bob", "scope": "read"}.items() <= found.items() and "token" not in found
    assert live.call("DELETE", f"/tokens/{found['id']}?user=bob", token=root).status == 204
    assert live.call("GET", "/tokens", token=bob).json() == []


@pytest.mark.parametrize(("body", "code"), [
    ({"name": ""}, "token.invalid"), ({"name": "a/b"}, "token.invalid"), ({"scope": "all"}, "token.invalid"),
    ({"expiresIn": 59}, "token.invalid"), ({"expiresIn": 366 * DAY}, "token.invalid"), ({"name": 7}, "body.value"),
    ({"expiresIn": "x"}, "body.value"), ({"scope": None}, "body.value"), ({"user": 3}, "body.value"),
])
def test_an_invalid_token_is_refused(team: Live, body: dict[str, Any], code: str) -> None:
    assert ask(team, team.bob, **body).error == (400, code)


def test_the_number_of_tokens_is_bounded(team: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    from local_backend.services import tokens

    carol = team.add_user("carol")
    monkeypatch.setattr(tokens, "_MOST", 2)
    assert [ask(team, carol, name=f"n{number}").error[1] for number in range(3)] == ["", "", "token.too_many"]


def requests_token(live: Live, token: str) -> str:
    """A token that only sends requests, made with this one."""
    made_now = live.call("POST", "/auth/token/inference", token=token, base="/dlim/v1")
    assert made_now.status == 200, made_now.text
    return str(made_now.json()["service_token"])


def sends(live: Live, token: str) -> bool:
    return live.call("POST", "/inference/none", b"{}", token=token, base="/dlim/v1").status == 404


def test_a_token_for_requests_ends_with_the_token_that_it_was_made_with(start: Callable[..., Live]) -> None:
    live = start(embedded=False)
    bob = live.add_user("bob")
    program, other = made(live, bob, scope="submit"), made(live, bob, scope="submit", name="other")
    first, second, own = (requests_token(live, token) for token in (program, other, bob))
    assert sends(live, first) and sends(live, second) and sends(live, own)
    assert live.call("DELETE", "/tokens/ci", token=bob).status == 204
    assert (sends(live, first), sends(live, second), sends(live, own)) == (False, True, True)


def test_the_number_of_tokens_for_requests_is_bounded(
    start: Callable[..., Live], monkeypatch: pytest.MonkeyPatch
) -> None:
    from local_backend.store import tokens

    live = start(embedded=False)
    bob, carol = live.add_user("bob"), live.add_user("carol")
    monkeypatch.setattr(tokens, "_MOST_FOR_REQUESTS", 2)
    of_carol = requests_token(live, carol)
    found = [requests_token(live, bob) for _ in range(4)]
    assert [sends(live, token) for token in [*found, of_carol]] == [False, False, True, True, True]


def test_records_name_the_token(start: Callable[..., Live]) -> None:
    live = start(embedded=False)
    token = made(live, live.add_user("bob"), name="nightly", scope="submit")
    exec_id = live.submitted(token=token)
    live.call("DELETE", f"/execs/{exec_id}", token=token)
    text = (live.settings.home / "audit.log").read_text()
    found = [json.loads(line) for line in text.splitlines()]
    assert [(one["action"], one.get("token"), one["outcome"], one.get("code")) for one in found] == [
        ("token.create", None, "done", None), ("exec.submit", "nightly", "done", None),
        ("exec.delete", "nightly", "refused", "auth.scope"),
    ]
    assert token not in text


def test_a_call_that_waits_for_news_gets_none_when_its_token_is_revoked(start: Callable[..., Live]) -> None:
    live = start(embedded=False)
    bob = live.add_user("bob")
    exec_id = live.submitted(token=bob)
    cursor = live.call("GET", f"/execs/{exec_id}/follow", token=bob).json()["cursor"]
    streams = live.services.load.users.streams
    eventually(lambda: not streams, "the first stream has ended")
    path = f"/execs/{exec_id}/follow?wait=30&cursor={cursor}"
    answers: list[Answer] = []
    waiting = threading.Thread(target=lambda: answers.append(live.call("GET", path, token=bob)))
    waiting.start()
    eventually(lambda: streams["bob"] == 1, "the call waits")
    began = time.monotonic()
    eventually(lambda: time.monotonic() > began + 0.3, "the call has waited")
    assert live.call("POST", wire.LOGOFF, token=bob, base="").status == 200
    live.move(exec_id, PENDING, KILLED)
    waiting.join(PATIENCE)
    assert [one.error for one in answers] == [(401, "auth.required")]
