"""The session cookie of G1 clients: the calls that accept it, the calls that refuse it, and its end."""

from __future__ import annotations

import base64
import itertools
from pathlib import Path

import jwt
import pytest
import requests
import trustme
from live_server import PASSWORD, TOKEN, Answer, Live, basic, settings_for

from dlicmd.contract import wire
from local_backend.api.guard import CONDUCTOR_LOGON, SESSION
from local_backend.services import throttle


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle, "DELAY", 0.0)


def logged_on(live: Live) -> Answer:
    answer = live.call("GET", CONDUCTOR_LOGON, headers=basic("alice", PASSWORD), token=None, base="")
    assert answer.status == 200
    return answer


def cookie(live: Live) -> str:
    return logged_on(live).headers["set-cookie"].partition(";")[0]


def asked(live: Live, method: str = "GET", path: str = "/conf", **headers: str) -> int:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return live.call(method, path, token=None, headers=sent).status


def test_a_requests_session_keeps_the_cookie(live: Live) -> None:
    """The notebooks' library works like this. Contract, 1.1: 'HTTP Basic | 200 + session cookies'."""
    base = f"http://127.0.0.1:{live.port}"
    with requests.Session() as session:
        session.trust_env = False
        assert session.get(base + wire.CONF, timeout=60).status_code == 401
        assert session.get(base + CONDUCTOR_LOGON, auth=("alice", PASSWORD.encode()), timeout=60).status_code == 200
        assert [kept.name for kept in session.cookies] == [SESSION]
        assert session.get(base + wire.CONF, timeout=60).status_code == 200
        exec_id = live.submitted()
        assert session.post(base + wire.exec_path(exec_id, "stop"), timeout=60).status_code == 204
        kept = session.cookies[SESSION]
        assert session.post(base + wire.LOGOFF, timeout=60).status_code == 200
        assert not session.cookies, "the logoff did not remove the cookie"
        assert session.get(base + wire.CONF, timeout=60).status_code == 401
        session.cookies.set(SESSION, kept)
        assert session.get(base + wire.CONF, timeout=60).status_code == 401, "the token of the cookie was not revoked"


def test_the_cookie_holds_the_token_and_has_strict_attributes(live: Live) -> None:
    answer = logged_on(live)
    value, *words = answer.headers["set-cookie"].split("; ")
    assert value == f"{SESSION}={answer.json()['accessToken']}"
    assert sorted(word.lower() for word in words) == ["httponly", "path=/", "samesite=strict"], "expected no Secure"
    assert "set-cookie" not in live.call("GET", wire.LOGON, headers=basic("alice", TOKEN), token=None, base="").headers
    wrong = live.call("GET", CONDUCTOR_LOGON, headers=basic("alice", "guess"), token=None, base="")
    assert wrong.status == 401 and "set-cookie" not in wrong.headers


def test_the_cookie_of_a_tls_server_is_secure(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    (tmp_path / "key.pem").write_bytes(issued.private_key_pem.bytes())
    (tmp_path / "cert.pem").write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    live = Live(settings_for(tmp_path / "home", tls_cert=tmp_path / "cert.pem", tls_key=tmp_path / "key.pem"))
    try:
        with requests.Session() as session:
            session.trust_env, session.verify = False, str(tmp_path / "ca.pem")
            base = f"https://127.0.0.1:{live.port}"
            answer = session.get(base + CONDUCTOR_LOGON, auth=("alice", PASSWORD.encode()), timeout=60)
            assert "; secure" in answer.headers["set-cookie"].lower() and [c.secure for c in session.cookies] == [True]
            assert session.get(base + wire.CONF, timeout=60).status_code == 200
    finally:
        live.close()


def test_foreign_pages_cannot_use_the_cookie(live: Live) -> None:
    """A browser sends cookies with requests of every page, and to every port of a host."""
    kept, own = cookie(live), f"127.0.0.1:{live.port}"
    exec_id = live.submitted()
    foreign = [
        {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": f"https://{own}"},
        {"Origin": "http://127.0.0.1:1"}, {"Sec_Fetch_Site": "cross-site"}, {"Sec_Fetch_Site": "same-site"},
        {"Host": "evil.example"}, {"Host": "evil.example", "Origin": "http://evil.example"},
    ]
    calls = [("GET", "/execs"), ("POST", f"/execs/{exec_id}/stop"), ("DELETE", "/execs"), ("PUT", "/users/x/password")]
    for headers, (method, path) in itertools.product(foreign, calls):
        assert asked(live, method, path, Cookie=kept, **headers) == 403, (headers, method)
    assert not live.row(exec_id).stop_requested and not live.row(exec_id).deleted
    assert asked(live, Cookie=kept, Origin=f"http://{own}", Sec_Fetch_Site="same-origin") == 200


def test_the_cookie_counts_only_without_other_credentials(live: Live) -> None:
    kept = cookie(live)
    assert asked(live, Cookie=f"other=1; {kept}; x") == 200
    assert asked(live, Cookie=kept, X_Auth_Token="wrong") == 401
    assert asked(live, Cookie=kept, Authorization="Bearer ") == 401
    assert asked(live, Cookie=kept, **basic("alice", "guess")) == 401


@pytest.mark.parametrize("line", [
    "", ";", "=", SESSION, f"{SESSION}=", f"{SESSION}=x.y.z", f"{SESSION}={'x' * 5000}", f"{SESSION}={TOKEN[:-1]}",
    f"x{SESSION}={{token}}", f"{SESSION}x={{token}}", f"{SESSION.upper()}={{token}}", f"{SESSION}=a.b.c; {{whole}}",
    f"{{whole}}; {SESSION}=a.b.c", "{whole}; {whole}", f"{SESSION}=\xff", f"{SESSION}={{token}}x",
])
def test_no_other_cookie_is_accepted(live: Live, line: str) -> None:
    whole = cookie(live)
    assert asked(live, Cookie=line.format(whole=whole, token=whole.partition("=")[2])) == 401


def test_a_logoff_ends_the_session(live: Live) -> None:
    one, two = cookie(live), cookie(live)
    # A logoff with another token ends this session, too.
    answer = live.call("POST", wire.LOGOFF, token=two.partition("=")[2], headers={"Cookie": one}, base="")
    assert answer.status == 200 and answer.headers["set-cookie"].startswith(f'{SESSION}=""; ')
    assert "max-age=0" in answer.headers["set-cookie"].lower()
    assert asked(live, Cookie=one) == asked(live, Cookie=two) == 401


def test_a_token_is_validated_in_every_form(live: Live) -> None:
    """Contract, §8: 'username, role, permissions[], groups[], sub, iss, aud, uid, authenticator, accessToken,
    messageCode ("success"), message ("success")'."""
    answer = logged_on(live).json()
    token = answer["accessToken"]
    for headers in ({"Authorization": f"Bearer {token}"}, {"X-Auth-Token": token}, {"Cookie": f"{SESSION}={token}"},
                    basic("alice", token)):
        found = live.call("GET", wire.VALIDATE, token=None, headers=headers, base="")
        assert found.status == 200 and found.json() == answer, headers
        assert found.headers["cache-control"] == "no-store"
    own = live.call("GET", wire.VALIDATE, base="").json()
    assert own == {name: value for name, value in answer.items() if name not in {"iat", "exp"}} | {"accessToken": TOKEN}
    live.call("POST", wire.LOGOFF, token=token, base="")
    assert live.call("GET", wire.VALIDATE, token=token, base="").status == 401


def test_validation_accepts_a_password_and_returns_a_token(live: Live) -> None:
    found = live.call("GET", wire.VALIDATE, headers=basic("alice", PASSWORD), token=None, base="")
    assert found.status == 200 and live.call("GET", "/conf", token=found.json()["accessToken"]).status == 200
    for headers in ({}, basic("alice", "guess"), basic("bob", PASSWORD)):
        assert live.call("GET", wire.VALIDATE, headers=headers, token=None, base="").status == 401


def test_the_claims_are_those_of_the_recordings(start) -> None:
    """Contract, §8: 'username, role (`User`|`Admin`), permissions (list), groups (list of int), sub, iss `KNOXSSO`,
    aud `DSX`, uid (string), authenticator `default`, iat, exp'."""
    live = start(embedded=False)
    token = live.add_user("carol")
    for name, answer, role in (
        ("alice", logged_on(live).json(), "Admin"),
        ("carol", live.call("GET", wire.VALIDATE, token=token, base="").json(), "User"),
    ):
        said = {"iss": "KNOXSSO", "aud": "DSX", "authenticator": "default", "username": name, "sub": name, "uid": name,
                "role": role, "groups": []}
        assert answer.items() >= said.items() and all(type(word) is str for word in answer["permissions"])
        assert type(answer["iat"]) is type(answer["exp"]) is int and answer["exp"] > answer["iat"]
    claims = jwt.decode(logged_on(live).json()["accessToken"], options={"verify_signature": False})
    assert claims["iss"] == "KNOXSSO" and claims["aud"] == "DSX" and claims["username"] == "alice"


@pytest.mark.parametrize("path", [wire.LOGON, CONDUCTOR_LOGON])
@pytest.mark.parametrize("value", ["Basic", "Basic ", "Basic x", "basic !!", "Basic " + base64.b64encode(b"x").decode(),
                                   "Basic " + base64.b64encode(b"\xff:\xfe").decode(), "Basic YTpi YTpi"])
def test_a_malformed_logon_is_a_bad_request(shared: Live, path: str, value: str) -> None:
    """Contract, 1.1: '401 bad credentials, 400 bad request; body printed as is'."""
    answer = shared.call("GET", path, headers={"Authorization": value}, token=None, base="")
    assert answer.error == (400, "auth.basic") and "user:password" in answer.text
