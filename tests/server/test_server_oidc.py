"""Logons with tokens of an OIDC issuer: forged and foreign tokens, users, roles, and the traffic to the issuer."""

from __future__ import annotations

import base64
import hmac
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from live_server import TOKEN, Answer, Live
from oidc_issuer import CLIENT, Issuer

from dlicmd.contract import wire
from local_backend import oidc
from local_backend.settings import OidcSettings
from local_backend.store import users

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def _made() -> Iterator[Issuer]:
    running = Issuer()
    yield running
    running.close()


@pytest.fixture
def issuer(_made: Issuer) -> Issuer:
    _made.fetches, _made.broken, _made.said_issuer, _made.keys = 0, False, None, {"one": _made.key}
    return _made


@pytest.fixture
def team(start: Callable[..., Live], issuer: Issuer) -> Live:
    return of(start, issuer, create_users=True)


def of(start: Callable[..., Live], issuer: Issuer, **more: Any) -> Live:
    return start(embedded=False, oidc=OidcSettings(issuer=issuer.url, client_id=CLIENT, **more))


def exchange(live: Live, token: Any, **more: Any) -> Answer:
    return live.call("POST", wire.OIDC, json.dumps({"token": token, **more}).encode(), JSON, token=None, base="")


def send(live: Live, method: str, path: str, body: object) -> Answer:
    return live.call(method, path, json.dumps(body).encode(), JSON)


def test_a_token_of_the_issuer_is_exchanged_for_one_of_the_server(team: Live, issuer: Issuer) -> None:
    assert team.call("GET", wire.OIDC, token=None, base="").json() == {
        "issuer": issuer.url, "clientId": CLIENT, "scopes": "openid profile email"}
    answer = exchange(team, issuer.token())
    assert answer.status == 200 and answer.headers["cache-control"] == "no-store", answer.text
    found = answer.json()
    assert (found["username"], found["role"]) == ("ada", "User")
    assert team.call("GET", "/execs", token=found["accessToken"]).status == 200
    again = exchange(team, issuer.token(preferred_username="renamed")).json()
    assert again["username"] == "ada", "the identity is the subject, not the name"
    lines = (team.settings.home / "audit.log").read_text().splitlines()
    assert [(one["user"], one["action"], one["about"]) for one in map(json.loads, lines)] == [
        ("ada", "auth.oidc", [f"{issuer.url} account-1"])] * 2


def part(content: dict[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")


def confused(one: Issuer) -> str:
    """A token that is signed with the public key as an HMAC secret."""
    unsigned = f"{part({'alg': 'HS256', 'kid': 'one'})}.{part(one.claims())}"
    signature = hmac.digest(one.pem, unsigned.encode(), "sha256")
    return f"{unsigned}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


FORGED: dict[str, Callable[[Issuer], Any]] = {
    "none": lambda one: f"{part({'alg': 'none', 'kid': 'one'})}.{part(one.claims())}.",
    "None": lambda one: f"{part({'alg': 'None', 'kid': 'one'})}.{part(one.claims())}.",
    "no signature": lambda one: one.token().rpartition(".")[0] + ".",
    "public key as secret": confused,
    "symmetric key of the set": lambda one: one.token("secret", b"secret-secret-secret-secret-secret", "HS256"),
    "key of another algorithm": lambda one: one.token("one", one.curve, "ES256"),
    "key of another issuer": lambda one: one.token(key=generate_private_key(65537, 2048)),
    "unknown key": lambda one: one.token("two", generate_private_key(65537, 2048)),
    "no key named, and several known": lambda one: one.token(None),
    "key named by a list": lambda one: f"{part({'alg': 'RS256', 'kid': ['one']})}.{part(one.claims())}.x",
    "other claims": lambda one: ".".join([one.token().split(".")[0], part(one.claims(sub="root")),
                                          one.token().split(".")[2]]),
    "another issuer": lambda one: one.token(iss="http://127.0.0.1:1/realm"),
    "issuer with a slash": lambda one: one.token(iss=one.url + "/"),
    "no issuer": lambda one: one.token(iss=None),
    "another audience": lambda one: one.token(aud="other"),
    "no audience": lambda one: one.token(aud=None),
    "several audiences, for another client": lambda one: one.token(aud=[CLIENT, "other"], azp="other"),
    "for another client": lambda one: one.token(azp="other"),
    "expired": lambda one: one.token(exp=int(time.time()) - 120),
    "no end": lambda one: one.token(exp=None),
    "of the future": lambda one: one.token(iat=int(time.time()) + 600, exp=int(time.time()) + 1200),
    "not yet valid": lambda one: one.token(nbf=int(time.time()) + 600),
    "no subject": lambda one: one.token(sub=None),
    "of another logon": lambda one: one.token(nonce="n-1"),
    "too long": lambda one: one.token(more="x" * 20_000),
    "no token": lambda one: "a.b.c",
    "empty": lambda one: "",
    "token of the server": lambda one: TOKEN,
}


def test_forged_and_foreign_tokens_are_refused(team: Live, issuer: Issuer) -> None:
    for name, make in FORGED.items():
        assert exchange(team, make(issuer)).error == (401, "oidc.token"), name
    assert team.database.read(users.everybody) == []
    assert exchange(team, issuer.token()).status == 200
    assert exchange(team, issuer.token("curve", issuer.curve, "ES256")).status == 200
    assert exchange(team, issuer.token(nonce="n-1"), nonce="n-1").status == 200
    assert exchange(team, issuer.token(nonce="n-1"), nonce="n-2").error == (401, "oidc.token")
    assert exchange(team, issuer.token(), nonce="n-2").error == (401, "oidc.token")
    assert issuer.fetches == 1
    team.services.logons.close()
    refused = [json.loads(line) for line in (team.settings.home / "refused-logons.log").read_text().splitlines()]
    assert [(one["action"], one["code"], one["count"]) for one in refused] == [
        ("auth.oidc", "oidc.token", len(FORGED) + 2)]


def test_unknown_keys_do_not_flood_the_issuer(team: Live, issuer: Issuer) -> None:
    other = generate_private_key(65537, 2048)
    tokens = [issuer.token(f"unknown {number}", other) for number in range(100)]
    with ThreadPoolExecutor(10) as pool:
        found = {answer.error for answer in pool.map(lambda token: exchange(team, token), tokens)}
    assert found == {(401, "oidc.token")} and issuer.fetches == 1
    assert exchange(team, issuer.token()).status == 200


class Clock:
    """A clock that tests set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(team: Live) -> Clock:
    found = Clock()
    team.services.oidc.tokens._clock = found
    return found


def test_a_new_key_of_the_issuer_is_found(team: Live, issuer: Issuer, clock: Clock) -> None:
    assert exchange(team, issuer.token()).status == 200
    other = generate_private_key(65537, 2048)
    issuer.keys = {"two": other}
    token = issuer.token("two", other)
    assert exchange(team, token).error == (401, "oidc.token")
    clock.now += oidc.PAUSE
    assert exchange(team, token).status == 200 and issuer.fetches == 2
    assert exchange(team, issuer.token()).error == (401, "oidc.token"), "a withdrawn key must not stay"


def test_an_issuer_that_fails_is_asked_once_in_a_while(team: Live, issuer: Issuer, clock: Clock) -> None:
    issuer.broken = True
    for _ in range(3):
        answer = exchange(team, issuer.token())
        assert answer.error == (503, "oidc.issuer") and int(answer.headers["retry-after"]) >= 1
    issuer.broken = False
    assert exchange(team, issuer.token()).status == 503
    clock.now += oidc.PAUSE
    assert exchange(team, issuer.token()).status == 200
    issuer.broken = True
    clock.now += oidc.FRESH + 1
    assert exchange(team, issuer.token()).status == 200, "known keys must survive a short failure"
    clock.now += oidc.USABLE
    assert exchange(team, issuer.token()).error == (503, "oidc.issuer")


def test_keys_that_another_issuer_describes_are_not_used(team: Live, issuer: Issuer) -> None:
    issuer.said_issuer = "https://evil.example"
    assert exchange(team, issuer.token()).error == (503, "oidc.issuer")


def test_an_account_does_not_take_over_a_user_of_its_name(start: Callable[..., Live], issuer: Issuer) -> None:
    team = of(start, issuer, create_users=True)
    send(team, "POST", "/users", {"name": "ada", "password": "a long secret", "role": "admin"})
    assert exchange(team, issuer.token()).error == (403, "oidc.collision")
    assert exchange(team, issuer.token(sub="s", preferred_username="alice")).error == (403, "oidc.collision")
    assert send(team, "PUT", "/users/ada/subject", {"subject": "account-1"}).status == 204
    assert exchange(team, issuer.token()).json()["role"] == "Admin"
    assert exchange(team, issuer.token(sub="account-2")).error == (403, "oidc.collision")
    send(team, "POST", "/users", {"name": "bob", "password": "a long secret", "role": "user"})
    assert send(team, "PUT", "/users/bob/subject", {"subject": "account-1"}).error == (409, "user.exists")
    assert send(team, "PUT", "/users/nobody/subject", {"subject": "x"}).error == (404, "user.not_found")
    assert send(team, "PUT", "/users/bob/subject", {}).error == (400, "user.invalid")
    assert f"{issuer.url} account-1" in team.call("GET", "/users").text


def test_users_are_made_only_if_the_settings_permit_it(start: Callable[..., Live], issuer: Issuer) -> None:
    team = of(start, issuer)
    assert exchange(team, issuer.token()).error == (403, "oidc.unknown_user")
    assert team.database.read(users.everybody) == []


@pytest.mark.parametrize("name", ["", "a/b", "../x", "-x", "a b", "x" * 65, 7, None, ["ada"]])
def test_a_name_that_no_user_can_have_is_refused(team: Live, issuer: Issuer, name: Any) -> None:
    assert exchange(team, issuer.token(preferred_username=name)).error == (403, "oidc.name")


def test_a_user_of_the_issuer_has_no_password(team: Live, issuer: Issuer) -> None:
    assert exchange(team, issuer.token()).status == 200
    pair = base64.b64encode(b"ada:none").decode()
    assert team.call("GET", wire.LOGON, headers={"Authorization": f"Basic {pair}"}, token=None, base="").status == 401


@pytest.mark.parametrize(("claims", "role"), [
    ({"groups": ["staff", "gpu-admins"]}, "Admin"), ({"groups": "gpu-admins"}, "Admin"), ({}, "User"),
    ({"groups": ["staff"]}, "User"), ({"groups": []}, "User"), ({"groups": {"gpu-admins": True}}, "User"),
    ({"groups": [{}, None]}, "User"),
])
def test_a_claim_decides_the_role_at_each_logon(
    start: Callable[..., Live], issuer: Issuer, claims: dict[str, Any], role: str
) -> None:
    team = of(start, issuer, create_users=True, admin_claim="groups", admin_values=("gpu-admins",))
    for before in (["gpu-admins"], ["staff"]):
        exchange(team, issuer.token(groups=before))
        assert exchange(team, issuer.token(**claims)).json()["role"] == role


def test_claims_may_be_nested_and_other_claims_may_identify(start: Callable[..., Live], issuer: Issuer) -> None:
    team = of(start, issuer, create_users=True, admin_claim="realm_access.roles", admin_values=("root",),
              subject_claim="project_id", user_claim="project", audience="gpu")
    more = {"aud": "gpu", "project_id": 7, "project": "trainer", "realm_access": {"roles": ["root"]}}
    found = exchange(team, issuer.token(sub="branch:main", **more)).json()
    assert (found["username"], found["role"]) == ("trainer", "Admin")
    assert exchange(team, issuer.token(sub="branch:dev", **more)).json()["username"] == "trainer"
    assert exchange(team, issuer.token(sub="x")).error == (401, "oidc.token")


def test_a_server_without_an_issuer_refuses(start: Callable[..., Live], issuer: Issuer) -> None:
    for live in (start(embedded=False), start(oidc=OidcSettings(issuer=issuer.url, client_id=CLIENT))):
        assert exchange(live, issuer.token()).error == (404, "oidc.off")
        assert live.call("GET", wire.OIDC, token=None, base="").error == (404, "oidc.off")
    assert issuer.fetches == 0


@pytest.mark.parametrize("body", [{}, {"token": 1}, {"token": "x", "nonce": 2}, [], None])
def test_a_malformed_body_is_refused(team: Live, body: Any) -> None:
    answer = team.call("POST", wire.OIDC, json.dumps(body).encode(), JSON, token=None, base="")
    assert answer.error == (400, "body.value")
