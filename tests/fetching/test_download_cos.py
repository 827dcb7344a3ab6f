"""IBM Cloud Object Storage with an API key: moto behind a stand-in for IBM Cloud.

The stand-in issues tokens and requires them. No test connects to the real service.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import parse_qs

import pytest
import requests
from fetching_desk import Desk, content
from file_servers import NotThere, S3Server, s3_server

from local_backend.data.errors import DataError, DataUnavailable
from local_backend.data.kinds import iam
from local_backend.data.registry import find

pytestmark = pytest.mark.integration

KEY = "planted-api-key"
LARGE = 3 * 2**20 + 7


class Cloud(BaseHTTPRequestHandler):
    """Issues tokens for the key at /identity/token, and forwards requests with a valid token to the S3 server."""

    server_version = "stand-in"
    behind: ClassVar[str] = ""
    lasts: ClassVar[int] = 3600
    given: ClassVar[list[str]] = []
    instances: ClassVar[list[str | None]] = []

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        if self.path != "/identity/token" or form != {key: [value] for key, value in iam.form(KEY).items()}:
            return self.answer(400, b'{"errorMessage": "Provided API key could not be found"}')
        self.given.append(f"token-{len(self.given)}")
        return self.answer(200, f'{{"access_token": "{self.given[-1]}", "expires_in": {self.lasts}}}'.encode())

    def do_GET(self) -> None:
        if self.headers["Authorization"] not in [f"Bearer {token}" for token in self.given]:
            return self.answer(403, b"<Error><Code>AccessDenied</Code></Error>")
        self.instances.append(self.headers["ibm-service-instance-id"])
        sent = {name: self.headers[name] for name in ("Range", "If-Match", "Authorization") if name in self.headers}
        found = requests.request(self.command, self.behind + self.path, headers=sent, timeout=90)
        kept = {name: found.headers[name] for name in ("ETag", "Content-Range") if name in found.headers}
        return self.answer(found.status_code, found.content, kept, found.headers["Content-Length"])

    do_HEAD = do_GET

    def answer(self, code: int, body: bytes, headers: dict[str, str] | None = None, length: str = "") -> None:
        self.send_response(code)
        for name, value in {**(headers or {}), "Content-Length": length or str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def moto() -> Iterator[S3Server]:
    try:
        with s3_server() as found:
            yield found
    except NotThere as problem:
        pytest.skip(str(problem))


@pytest.fixture
def cloud(moto: S3Server) -> Iterator[str]:
    """The address of the stand-in."""
    Cloud.behind, Cloud.lasts = moto.url, 3600
    Cloud.given.clear()
    Cloud.instances.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Cloud)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def values(cloud: str, **more: str) -> dict[str, str]:
    return {"url": cloud, "apikey": KEY, "iam_url": f"{cloud}/identity/token", **more}


def test_every_request_carries_a_token_and_tokens_are_reused(moto: S3Server, cloud: str, desk: Desk) -> None:
    moto.client().create_bucket(Bucket="lake")
    moto.client().put_object(Bucket="lake", Key="train/big", Body=content(LARGE))
    moto.client().put_object(Bucket="lake", Key="train/small", Body=b"few")
    known = values(cloud, resource_instance_id="crn:v1:x")
    desk.get("Cloud Object Storage", known, {"bucket": "lake", "path": "train"})
    assert desk.read() == {"big": content(LARGE), "small": b"few"}
    assert set(Cloud.instances) == {"crn:v1:x"} and len(Cloud.given) < len(Cloud.instances)
    family = find("cos").open(values(cloud, bucket="lake"), loopback=True)
    before = len(Cloud.given)
    for _ in range(3):
        family.test()
    assert len(Cloud.given) == before + 1


def test_a_token_that_expires_soon_is_renewed(cloud: str) -> None:
    Cloud.lasts = 10
    tokens = iam.Tokens("COS", KEY, f"{cloud}/identity/token")
    assert [tokens.current(), tokens.current()] == ["token-0", "token-1"]
    Cloud.lasts = 3600
    assert tokens.current() == tokens.current() == "token-2"


def test_a_wrong_key_is_reported_without_showing_it(cloud: str) -> None:
    family = find("cos").open(values(cloud, apikey="planted-wrong-key"), loopback=True)
    with pytest.raises(DataError, match=r"/identity/token .*'api_key' \(400\)") as wrong:
        family.test()
    assert not isinstance(wrong.value, DataUnavailable) and "planted" not in str(wrong.value)
    closed = find("cos").open(values(cloud, iam_url="http://127.0.0.1:9/token"), loopback=True)
    with pytest.raises(DataUnavailable, match=r"127\.0\.0\.1:9/token "):
        closed.test()
    with pytest.raises(DataError, match="'api_key'; remove 'access'"):
        find("cos").open(values(cloud), loopback=True).storage()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("change", "said"), [
    ({"url": "http://192.0.2.1"}, "'endpoint_url' must be https"),
    ({"url": "https://192.0.2.1"}, "'iam_url' must be https"),
    ({"url": "https://192.0.2.1", "iam_url": "https://127.0.0.1/token"}, "does not connect to the address 127"),
])
def test_a_key_is_not_sent_without_https_or_to_loopback(cloud: str, change: dict[str, str], said: str) -> None:
    pytest.importorskip("boto3")
    with pytest.raises(DataError, match=said) as problem:
        find("cos").open(values(cloud, **change), loopback=False).test()
    assert type(problem.value) is DataError and Cloud.given == []


def test_hmac_keys_take_precedence_over_an_api_key(moto: S3Server, cloud: str) -> None:
    family = find("cos").open({**moto.values, "api_key": KEY}, loopback=True)
    family.test()
    assert Cloud.given == [] and family.storage()[1]["key"] == "testing"  # type: ignore[attr-defined]
