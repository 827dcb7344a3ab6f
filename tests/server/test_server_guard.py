"""The server refuses calls without a token, from another origin or under a foreign host name, on every path and method.
"""

from __future__ import annotations

import base64
import itertools
import json

import pytest
from live_server import PASSWORD, TOKEN, Live, basic, route_table
from support import VOLUME

from dlicmd.contract import dlim, wire
from local_backend.api.guard import CLIENT_FILE, OPEN_PATHS, PLATFORM_LOGONS, host_name
from local_backend.services import throttle
from local_backend.store import tokens

METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD")


def paths_of(live: Live) -> list[str]:
    """Return every path of the application, with its parameters filled in."""
    return sorted(
        path.replace("{exec_id}", "local-1").replace("{app_id}", "local-1").replace("{number}", "1")
        .replace("{log}", "stdout")
        for path in route_table(live)
    )


def test_the_route_table_has_every_described_path(live: Live) -> None:
    described = live.call("GET", "/openapi.json", base="").json()["paths"]
    assert len(paths_of(live)) >= len(described) + 1  # The table also has /openapi.json itself.
    assert {f"{wire.EXECS}/local-1/follow", wire.SLOTS_VIEW, wire.HOLDINGS} <= set(paths_of(live))


def test_every_method_of_every_path_needs_a_token(live: Live) -> None:
    """Each call has the next wrong token; with TEST_VOLUME=10, all wrong tokens."""
    live.submitted()
    wrong = (None, "", "wrong", TOKEN + "x", TOKEN[:-1])
    turns = itertools.cycle(wrong)
    for path, method in itertools.product(paths_of(live), METHODS):
        if path in OPEN_PATHS:
            continue
        for spelling in (path, path + "/"):
            for token in wrong if VOLUME > 1 else (next(turns),):
                answer = live.call(method, spelling, token=token, base="")
                assert answer.status == 401, (method, spelling, token)
                assert "www-authenticate" in answer.headers
    assert not live.row("local-1").stop_requested


@pytest.mark.parametrize("path", [f"{wire.BASE}/conf", f"{wire.BASE}/execs", wire.HEALTH, wire.READY, CLIENT_FILE])
def test_head_is_answered_as_get_without_the_body(live: Live, path: str) -> None:
    """RFC 9110, 9.3.2. Scripts of WMLA look for the client with `wget --spider`."""
    found, head = (live.call(method, path, base="") for method in ("GET", "HEAD"))
    assert (head.status, head.body) == (200, b"") and found.body
    for name in ("content-type", "content-length"):
        assert head.headers[name] == found.headers[name]
    assert live.call("HEAD", "/execs/nope").status == 400


def test_a_token_is_accepted_in_three_headers(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle, "DELAY", 0.0)
    for headers in (
        {"Authorization": f"Bearer {TOKEN}"}, {"authorization": f"bearer {TOKEN}"}, {"X-Auth-Token": TOKEN},
        basic("whoever", TOKEN),
    ):
        assert live.call("GET", "/conf", token=None, headers=headers).status == 200, headers
    for headers in (
        basic(TOKEN, "x"), {"Authorization": TOKEN}, {"Authorization": "Basic !!"}, {"Authorization": "Basic"},
        {"Authorization": "Basic " + base64.b64encode(b"\xff\xfe").decode()}, {"Cookie": f"token={TOKEN}"},
    ):
        assert live.call("GET", "/conf", token=None, headers=headers).status == 401, headers
    assert live.call("GET", f"/conf?token={TOKEN}", token=None).status == 401


def test_every_call_accepts_user_and_password(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract, section 0, point 3: 'or HTTP Basic (G1 notebooks, SDK BasicAuthenticator)'."""
    monkeypatch.setattr(throttle, "DELAY", 0.0)
    assert live.call("GET", "/execs", token=None, headers=basic("alice", PASSWORD)).status == 200
    for headers in (basic("bob", PASSWORD), basic("alice", "guess"), basic("alice", ""), basic(PASSWORD, "alice")):
        assert live.call("GET", "/execs", token=None, headers=headers).status == 401, headers


def test_calls_are_checked_by_host_origin_and_fetch_site(live: Live) -> None:
    own = f"127.0.0.1:{live.port}"
    hosts = {
        own: True, "127.0.0.1": True, "localhost": True, f"LOCALHOST:{live.port}": True, f"[::1]:{live.port}": True,
        "evil.example": False, f"127.0.0.1.evil.example:{live.port}": False, "[": False, "127.0.0.1:99999": False,
        "localhost@evil.example": False, "[::1": False, "169.254.169.254": False, "": False,
    }
    origins: dict[str | None, bool] = {
        None: True, "own": True, "null": False, "http://evil.example": False, "http://localhost:3000": False,
    }
    sites: dict[str | None, bool] = {None: True, "none": True, "same-origin": True, "cross-site": False,
                                     "same-site": False}
    combinations = list(itertools.product(hosts, origins, sites, ("GET", "DELETE")))
    assert len(combinations) >= 300
    for host, origin, site, method in combinations:
        headers = {"Host": host}
        headers |= {"Origin": f"http://{host}" if origin == "own" else origin} if origin else {}
        headers |= {"Sec-Fetch-Site": site} if site else {}
        answer = live.call(method, "/execs", headers=headers)
        allowed = hosts[host] and origins[origin] and sites[site]
        assert (answer.status in {200, 204}) == allowed, (host, origin, site, method, answer)
        assert allowed or answer.status in {400, 403}


@pytest.mark.parametrize("path", sorted(OPEN_PATHS))
def test_open_paths_refuse_foreign_pages(live: Live, path: str) -> None:
    method, body, credentials = "GET", b"", basic("alice", TOKEN)
    if path in PLATFORM_LOGONS:
        method, body = "POST", json.dumps({"username": "alice", "password": TOKEN}).encode()
        credentials = {"Content-Type": "application/json"}
    if path.startswith(dlim.BASE):
        method = "POST"
    expected = 404 if path == wire.OIDC else 200  # this server has no issuer
    assert live.call(method, path, body, credentials, token=None, base="").status == expected
    for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert live.call(method, path, body, credentials | headers, token=None, base="").status == 403


def test_two_host_headers_are_refused(live: Live) -> None:
    import socket

    with socket.create_connection(("127.0.0.1", live.port), timeout=60) as raw:
        raw.sendall(
            f"GET {wire.CONF} HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n"
            f"Authorization: Bearer {TOKEN}\r\nConnection: close\r\n\r\n".encode()
        )
        assert raw.recv(100).split()[1] in {b"400", b"403"}


def test_point_3_logon_answers_access_token_and_logoff_revokes_it(live: Live) -> None:
    for password in (TOKEN, PASSWORD):
        answer = live.call("GET", wire.LOGON, headers=basic("alice", password), token=None, base="")
        assert answer.status == 200 and answer.headers["cache-control"] == "no-store"
    token = answer.json()["accessToken"]
    assert {"username", "role", "permissions", "uid"} <= set(answer.json())
    assert token != TOKEN and live.call("GET", "/conf", token=token).status == 200
    assert live.call("GET", "/conf", token=None, headers=basic("alice", token)).status == 200
    stored = live.settings.paths.database.read_bytes()
    assert token.encode() not in stored and tokens.digest(token).encode() in stored
    assert live.call("POST", wire.LOGOFF, token=None, base="").status == 401
    assert live.call("POST", wire.LOGOFF, token=token, base="").status == 200
    assert live.call("GET", "/conf", token=token).status == 401


def test_a_failed_logon_is_answered_with_401(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle, "DELAY", 0.0)
    for headers in ({}, basic("alice", "wrong"), basic("bob", TOKEN), basic("", ""), {"Authorization": "Token x"},
                    {"Authorization": f"Bearer {TOKEN}"}):
        answer = live.call("GET", wire.LOGON, headers=headers, token=None, base="")
        assert answer.status == 401 and answer.text.startswith("Error 401: ")


def test_tokens_of_logon_expire(start) -> None:
    live = start(token_seconds=0.0)
    token = live.call("GET", wire.LOGON, headers=basic("alice", TOKEN), token=None, base="").json()["accessToken"]
    assert live.call("GET", "/conf", token=token).status == 401


def test_a_shared_server_answers_only_to_its_own_names(start) -> None:
    hosts = ("gpu.example", "other.example")
    named = start(embedded=False, host="box.example", allowed_hosts=hosts)
    anywhere = start(embedded=False, host="0.0.0.0", allowed_hosts=hosts)
    for host, by_name, by_any in (
        ("box.example:9", 200, 403), ("gpu.example", 200, 200), ("192.168.7.7:8443", 403, 200),
        ("evil.example", 403, 403),
    ):
        assert named.call("GET", "/conf", headers={"Host": host}).status == by_name, host
        assert anywhere.call("GET", "/conf", headers={"Host": host}).status == by_any, host


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("localhost", "localhost"), ("LocalHost:80", "localhost"), ("[::1]:8080", "[::1]"), ("[::1]", "[::1]"),
        ("127.0.0.1:0", "127.0.0.1"), ("", None), (":80", None), ("a:b", None), ("[::1", None), ("a b", None),
        ("a:65536", None), ("user@host", None), ("::1", None), ("host:", None), ("-x", None), ("a/b", None),
    ],
)
def test_the_host_header_is_parsed_strictly(header: str, name: str | None) -> None:
    assert host_name(header) == name
