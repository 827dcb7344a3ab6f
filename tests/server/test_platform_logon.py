"""Logons of IBM Cloud Pak for Data: POST /icp4d-api/v1/authorize, and /v1/authorize."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from live_server import PASSWORD, TOKEN, Answer, Live, basic

from dlicmd.contract import wire
from local_backend.services import passwords, throttle

PATHS = ("/icp4d-api/v1/authorize", "/v1/authorize")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle, "DELAY", 0.0)


def authorize(live: Live, body: Any, path: str = PATHS[0], **headers: str) -> Answer:
    sent = {"Content-Type": "application/json", **headers}
    return live.call("POST", path, json.dumps(body).encode(), sent, token=None, base="")


@pytest.mark.parametrize("path", [*PATHS, PATHS[0] + "/"])
@pytest.mark.parametrize("secret", [{"password": PASSWORD}, {"api_key": PASSWORD}, {"api_key": TOKEN},
                                    {"password": PASSWORD, "api_key": "other"}, {"password": TOKEN, "api_key": None}])
def test_a_password_is_exchanged_for_a_token(live: Live, path: str, secret: dict[str, str | None]) -> None:
    answer = authorize(live, {"username": "alice", **secret}, path)
    assert answer.status == 200 and "set-cookie" not in answer.headers
    assert answer.headers["cache-control"] == "no-store"
    found = answer.json()
    token = found.pop("token")
    assert found == {"_messageCode_": "200", "message": "Success"}
    for headers in ({"Authorization": f"Bearer {token}"}, {"X-Auth-Token": token}):
        shown = live.call("GET", wire.VALIDATE, headers=headers, token=None, base="").json()
        assert (shown["username"], shown["accessToken"]) == ("alice", token)
    assert live.call("POST", wire.LOGOFF, token=token, base="").status == 200
    assert live.call("GET", "/conf", token=token).status == 401


@pytest.mark.parametrize("body", [
    {"username": "alice", "password": "guess"}, {"username": "alice", "api_key": "guess"},
    {"username": "eve", "password": PASSWORD}, {"username": "", "password": ""},
    {"username": "alice", "password": "guess", "api_key": PASSWORD}, {"username": "alice", "password": ""},
])
def test_wrong_credentials_are_refused_like_those_of_the_ordinary_logon(live: Live, body: dict[str, str]) -> None:
    ordinary = live.call("GET", wire.LOGON, headers=basic("alice", "guess"), token=None, base="")
    for path in PATHS:
        answer = authorize(live, body, path)
        assert answer.error == ordinary.error == (401, "auth.wrong_password")
        assert answer.text == ordinary.text and answer.headers.keys() == ordinary.headers.keys()


@pytest.mark.parametrize(("body", "code"), [
    ({}, "body.value"), ([], "body.value"), (None, "body.value"), ({"username": "alice"}, "body.value"),
    ({"password": PASSWORD}, "body.value"), ({"username": 1, "password": PASSWORD}, "body.value"),
    ({"username": "alice", "password": 1}, "body.value"), ({"username": "alice", "api_key": ["x"]}, "body.value"),
    ({"username": "alice", "password": None}, "body.value"), ({"username": "alice", "password": "\ud800"}, "body.json"),
])
def test_a_malformed_body_is_refused(live: Live, body: Any, code: str) -> None:
    answer = authorize(live, body)
    assert answer.error == (400, code) and PASSWORD not in answer.text


def test_a_client_that_accepts_only_json_gets_the_refusal_as_json(live: Live) -> None:
    answer = authorize(live, {"username": "alice", "password": "guess"}, Accept="application/json")
    assert answer.json() == {"status": 401, "code": "auth.wrong_password", "message": "User or password is wrong."}


def test_logons_are_recorded_without_their_secrets(live: Live) -> None:
    for secret in ({"password": PASSWORD}, {"api_key": "guess-1"}):
        authorize(live, {"username": "alice", **secret}, PATHS[1])
    live.services.logons.close()
    text = "".join((live.settings.home / name).read_text() for name in ("audit.log", "refused-logons.log"))
    found = [json.loads(line) for line in text.splitlines()]
    assert [(one["user"], one["from"], one["action"], one["outcome"], one.get("code")) for one in found] == [
        ("alice", "127.0.0.1", "auth.logon", "done", None),
        ("alice", "127.0.0.1", "auth.logon", "refused", "auth.wrong_password"),
    ]
    assert PASSWORD not in text and "guess-1" not in text


def test_guesses_count_together_with_those_of_other_logons(
    start: Callable[..., Live], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passwords, "Throttle", lambda: throttle.Throttle(lambda: 0.0))
    live = start(embedded=False)
    for number in range(throttle.FREE):
        name = "api_key" if number % 2 else "password"
        assert authorize(live, {"username": "alice", name: f"guess {number}"}, PATHS[number % 2]).status == 401
    refused = authorize(live, {"username": "alice", "password": PASSWORD})
    assert refused.error == (429, "auth.too_many_tries") and int(refused.headers["retry-after"]) >= 1
    assert live.call("GET", wire.LOGON, headers=basic("alice", PASSWORD), token=None, base="").status == 429


def test_a_page_of_another_origin_cannot_log_on(live: Live) -> None:
    answer = authorize(live, {"username": "alice", "password": PASSWORD}, Origin="https://evil.example")
    assert answer.error == (403, "http.origin")
