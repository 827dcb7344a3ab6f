"""`dlicmd login --oidc`: what dlicmd accepts of a server and of its issuer."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from client_desk import Desk
from fake_server import TOKEN, FakeServer, Reply

PATH = "/auth/v1/oidc"


class Provider:
    """An issuer that answers as a test says, and records the forms that it gets."""

    def __init__(self) -> None:
        provider = self
        self.forms: list[tuple[str, dict[str, str]]] = []
        self.tokens: list[tuple[int, dict[str, Any]]] = [(200, {"id_token": "an-id-token"})]
        self.more: dict[str, Any] = {}

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._say(200, provider.description)

            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                provider.forms.append((self.path, {key: value[0] for key, value in form.items()}))
                if self.path == "/device":
                    self._say(200, {"device_code": "dev-1", "user_code": "AB-CD", "interval": 1, "expires_in": 60,
                                    "verification_uri": provider.url + "/go"})
                else:
                    self._say(*provider.tokens.pop(0))

            def _say(self, status: int, content: object) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(content).encode())

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def description(self) -> dict[str, Any]:
        return {"issuer": self.url, "device_authorization_endpoint": self.url + "/device",
                "token_endpoint": self.url + "/token", **self.more}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def provider() -> Iterator[Provider]:
    found = Provider()
    yield found
    found.close()


@pytest.fixture
def login(fake: FakeServer, provider: Provider) -> list[str]:
    """The command line, with a server that uses the provider."""
    say(fake, issuer=provider.url)
    answer = {"accessToken": TOKEN, "username": "ada", "role": "User"}
    fake.replies["POST", PATH] = Reply(200, json.dumps(answer).encode())
    return ["login", f"http://127.0.0.1:{fake.port}", "-o", "json"]


def say(fake: FakeServer, **more: Any) -> None:
    found = {"issuer": "x", "clientId": "cli", "scopes": "openid profile", **more}
    fake.replies["GET", PATH] = Reply(200, json.dumps(found).encode())


def test_the_device_grant_waits_for_the_user(
    desk: Desk, fake: FakeServer, provider: Provider, login: list[str]
) -> None:
    provider.tokens = [(400, {"error": "authorization_pending"}), (200, {"id_token": "an-id-token"})]
    done = desk.run(*login, "--oidc")
    assert done.code == 0, done
    assert json.loads(done.out)["user"] == "ada" and "AB-CD" in done.err and "an-id-token" not in done.out + done.err
    assert provider.forms == [
        ("/device", {"client_id": "cli", "scope": "openid profile"}),
        *[("/token", {"grant_type": "urn:ietf:params:oauth:grant-type:device_code", "client_id": "cli",
                      "device_code": "dev-1"})] * 2,
    ]
    (exchange,) = [seen for seen in fake.seen if seen.method == "POST"]
    assert json.loads(exchange.body) == {"token": "an-id-token"} and "authorization" not in exchange.headers
    assert desk.run("ls").code == 0 and fake.seen[-1].headers["authorization"] == f"Bearer {TOKEN}"


@pytest.mark.parametrize(("tokens", "code"), [
    ((400, {"error": "access_denied"}), 9), ((400, {"error": "expired_token"}), 9), ((400, {}), 9),
    ((200, {"access_token": "x"}), 1),
])
def test_a_refusal_of_the_issuer_ends_the_logon(
    desk: Desk, provider: Provider, login: list[str], tokens: Any, code: int
) -> None:
    provider.tokens = [tokens]
    assert desk.run(*login, "--oidc").code == code


@pytest.mark.parametrize("issuer", ["http://issuer.example", "ftp://127.0.0.1", "file:///etc/passwd", "", None, "x"])
def test_an_issuer_without_tls_is_not_contacted(desk: Desk, fake: FakeServer, login: list[str], issuer: Any) -> None:
    say(fake, issuer=issuer)
    assert desk.run(*login, "--oidc").code == 1


@pytest.mark.parametrize("more", [
    {"issuer": "https://other.example"}, {"device_authorization_endpoint": "http://evil.example/device"},
    {"device_authorization_endpoint": None}, {"token_endpoint": "http://evil.example/token"},
])
def test_a_wrong_description_of_the_issuer_is_refused(
    desk: Desk, fake: FakeServer, provider: Provider, login: list[str], more: dict[str, Any]
) -> None:
    provider.more = more
    assert desk.run(*login, "--oidc").code == 1
    assert not [seen for seen in fake.seen if seen.method == "POST"]


@pytest.mark.parametrize("way", ["file", "variable"])
def test_a_token_of_a_pipeline_needs_no_issuer(desk: Desk, fake: FakeServer, login: list[str], way: str) -> None:
    (desk.folder / "token").write_text("ci-token\n")
    if way == "variable":
        desk.environment["DLICMD_OIDC_TOKEN"] = "ci-token"
    done = desk.run(*login, *(["--oidc-token-file", "token"] if way == "file" else []))
    assert done.code == 0, done
    (exchange,) = [seen for seen in fake.seen if seen.method == "POST"]
    assert json.loads(exchange.body) == {"token": "ci-token"}
    assert PATH not in [seen.path for seen in fake.seen if seen.method == "GET"]


def test_a_user_name_selects_the_password(desk: Desk, fake: FakeServer, login: list[str]) -> None:
    desk.environment["DLICMD_OIDC_TOKEN"] = "ci-token"
    assert desk.run(*login, "--username", "bob", given=b"secret\n").code == 0
    assert not [seen for seen in fake.seen if seen.method == "POST"]


@pytest.mark.parametrize("content", [None, b"", b" \n", b"\xff\xfe", b"x" * 70_000])
def test_a_file_without_a_token_is_refused(
    desk: Desk, login: list[str], tmp_path: Path, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "token").write_bytes(content)
    done = desk.run(*login, "--oidc-token-file", str(tmp_path / "token"))
    assert (done.code, done.error) == (2, "client.usage")


def test_a_server_without_oidc_is_named(desk: Desk, fake: FakeServer, login: list[str]) -> None:
    del fake.replies["GET", PATH]
    done = desk.run(*login, "--oidc")
    assert done.code != 0 and not fake.seen[-1].headers.get("authorization")
