"""Repeated requests: the requests that are repeated, those that are not, and the messages."""

from __future__ import annotations

import io
import signal
import ssl
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate

import pytest
import trustme
from client_desk import Desk
from fake_server import BASE, TOKEN, FakeServer, Reply, Seen
from support import PATIENCE, eventually

import dlicmd
from dlicmd.sdk import retry
from dlicmd.sdk.errors import ConnectFailed, ConnectionLost, ServerError, Unreachable, UsageProblem
from dlicmd.sdk.transport import Answer, FilePart, Multipart, Request

EXECS = f"{BASE}/execs/"


class Scripted:
    """A transport that fails or answers as scripted, then answers 200."""

    is_private = True

    def __init__(self, *story: Exception | Answer) -> None:
        self.story, self.bodies = list(story), []

    def send(self, request: Request) -> Answer:
        self.bodies.append(request.body if not isinstance(request.body, Multipart) else request.body.read())
        found = self.story.pop(0) if self.story else answer(200)
        if isinstance(found, Exception):
            raise found
        return found

    def close(self) -> None:
        pass


def answer(status: int, **headers: str) -> Answer:
    return Answer(status, {"content-length": "2", **headers}.items(), iter([b"{}"]))


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the pauses between attempts instead of sleeping."""
    made: list[float] = []
    monkeypatch.setattr(retry, "sleep", made.append)
    return made


LOST, UNSENT = ConnectionLost("broke"), ConnectFailed("nobody")


@pytest.mark.parametrize(("method", "keyed", "trouble", "again"), [
    *((method, False, trouble, True) for method in ("GET", "HEAD", "PUT", "DELETE")
      for trouble in (LOST, UNSENT, 429, 502, 503, 504)),
    ("POST", False, LOST, False), ("POST", False, UNSENT, True), ("POST", False, 503, False),
    ("POST", False, 429, False),
    *(("POST", True, trouble, True) for trouble in (LOST, UNSENT, 409, 429, 500, 503)),
    ("GET", False, 500, False), ("GET", False, 409, False), ("POST", True, 507, False), ("POST", True, 422, False),
    ("GET", False, Unreachable("not trusted"), False),
])
def test_only_repeatable_requests_are_repeated(
    method: str, keyed: bool, trouble: Exception | int, again: bool, pauses: list[float],
) -> None:
    way = Scripted(answer(trouble) if isinstance(trouble, int) else trouble)
    body = Multipart([FilePart("file", "f", io.BytesIO(b"content"), 7)])
    try:
        found = retry.Repeating(way, 3).send(Request(method, EXECS, body=body, keyed=keyed)).status
    except Unreachable:
        found = 0
    assert (found == 200, len(way.bodies), len(pauses)) == ((True, 2, 1) if again else (False, 1, 0))
    assert len(set(way.bodies)) == 1 and b"content" in way.bodies[0]


def test_attempts_and_pauses_are_bounded(pauses: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConnectionLost):
        retry.Repeating(Scripted(*[LOST] * 9), 3).send(Request("GET", EXECS))
    assert len(pauses) == 3 and pauses == sorted(pauses) and pauses[-1] < 5
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 3 and all(line.startswith("dlicmd: GET /execs/: broke; trying again in ") for line in said)
    assert retry.Repeating(Scripted(answer(503), answer(503)), 1).send(Request("GET", EXECS)).status == 503
    pauses.clear()
    asked = {"7": 7, formatdate(time.time() + 30, usegmt=True): 30, "soon": 0.2, "-1": 0.2}
    for text, seconds in asked.items():
        retry.Repeating(Scripted(answer(429, **{"retry-after": text})), 3).send(Request("GET", EXECS))
        assert abs(pauses.pop() - seconds) < 5
    way = Scripted(answer(503, **{"retry-after": "3600"}))
    assert retry.Repeating(way, 3).send(Request("GET", EXECS)).status == 503 and not pauses, "1 hour is too long"
    assert retry.Repeating(Scripted(*[answer(409)] * 9), 1).send(Request("POST", EXECS, keyed=True)).status == 200


def test_a_server_that_cannot_be_reached_is_reported_after_some_seconds(
    pauses: list[float], capsys: pytest.CaptureFixture[str],
) -> None:
    for retries, reports in ((3, 0), (5, 2)):
        with pytest.raises(ConnectFailed):
            retry.Repeating(Scripted(*[UNSENT] * 9), retries).send(Request("GET", EXECS))
        assert capsys.readouterr().err.count("trying again in") == reports


def test_dlicmd_retries_sets_the_number_of_retries(monkeypatch: pytest.MonkeyPatch, pauses: list[float]) -> None:
    for text, count in (("0", 0), ("5", 5), ("", retry.RETRIES)):
        monkeypatch.setenv("DLICMD_RETRIES", text)
        way = Scripted(*[LOST] * 20)
        with pytest.raises(ConnectionLost):
            dlicmd.Client(transport=way).execs()
        assert len(way.bodies) == 1 + count
    for text in ("-1", "many", "21", "٣"):
        monkeypatch.setenv("DLICMD_RETRIES", text)
        with pytest.raises(UsageProblem, match="DLICMD_RETRIES"):
            dlicmd.Client(transport=Scripted())


def test_a_repeated_deletion_of_a_deleted_exec_succeeds(pauses: list[float]) -> None:
    assert dlicmd.Client(transport=Scripted(LOST, answer(400), answer(400))).delete_exec("w-1") == 204
    with pytest.raises(dlicmd.DlicmdError, match="no exec"):
        dlicmd.Client(transport=Scripted(answer(400), answer(400))).delete_exec("w-1")


@pytest.mark.parametrize(("state", "code"), [("KILLED", 204), ("FINISHED", 400)])
def test_a_repeated_stop_of_a_killed_exec_succeeds(pauses: list[float], state: str, code: int) -> None:
    found = Answer(200, [], iter([f'{{"id": "w-1", "state": "{state}"}}'.encode()]))
    client = dlicmd.Client(transport=Scripted(LOST, answer(400), found))
    if code == 204:
        assert client.stop_exec("w-1") == 204
    else:
        with pytest.raises(ServerError, match="to stop w-1"):
            client.stop_exec("w-1")
    assert len(pauses) == 1
    with pytest.raises(ServerError, match="to stop w-1"):
        again = Answer(200, [], iter([b'{"id": "w-1", "state": "KILLED"}']))
        dlicmd.Client(transport=Scripted(answer(400), again)).stop_exec("w-1")


def test_an_uncertain_submission_is_not_reported_as_refused(pauses: list[float]) -> None:
    offers = Answer(200, [], iter([b'{"DLICMD_EXTENSIONS": "idempotency-key"}']))
    with pytest.raises(ConnectionLost, match="503"):
        dlicmd.Client(transport=Scripted(offers, LOST, *[answer(503) for _ in range(3)])).start_exec("")


def once(trouble: Reply | None = None) -> Callable[[Seen], Reply]:
    """Return a handler that fails the first submission after receiving it, with `trouble` or by closing the
    connection."""
    story: Iterator[Reply] = iter([])

    def handle(_seen: Seen) -> Reply:
        nonlocal story
        found = next(story, None)
        if found is None:
            story = iter([Reply(200, b'{"id": "w-1", "appId": "w-1"}')] * 2)
            if trouble is None:
                raise ConnectionResetError
            return trouble
        return found

    return handle


@pytest.mark.parametrize("trouble", [None, Reply(503), Reply(409, headers={"Retry-After": "0"})])
def test_a_submission_with_a_key_is_repeated(
    desk: Desk, fake: FakeServer, remote: list[str], trouble: Reply | None,
) -> None:
    fake.conf["DLICMD_EXTENSIONS"] = "idempotency-key"
    fake.replies["POST", EXECS] = once(trouble)
    desk.model()
    done = desk.run("--exec-start", "PyTorch", "--model-dir", "model", "--model-main", "train.py", *remote)
    assert done.code == 0, done
    first, second = fake.requests("POST")
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"] and first.body == second.body
    assert len(first.headers["idempotency-key"].strip('"')) == 36
    assert sum("trying again" in line for line in done.err.splitlines()) == 1 and "POST /execs/" in done.err


@pytest.mark.parametrize("trouble", [None, Reply(503)])
def test_a_submission_without_a_key_is_sent_once(
    desk: Desk, fake: FakeServer, remote: list[str], trouble: Reply | None,
) -> None:
    fake.replies["POST", EXECS] = once(trouble)
    desk.model()
    words = ["--exec-start", "PyTorch", "--model-dir", "model", "--model-main", "train.py"]
    done = desk.run(*words, *remote, "-o", "json")
    assert (done.code, done.error) == ((1, "server.refused") if trouble else (8, "server.unreachable"))
    assert len(fake.requests("POST")) == 1 and (trouble or "dlicmd --exec-get-all" in done.err)


def test_an_interrupt_ends_the_pause(desk: Desk, fake: FakeServer, remote: list[str]) -> None:
    fake.replies["GET", EXECS] = Reply(503, headers={"Retry-After": "60"})
    with desk.start("--exec-get-all", *remote) as process:
        eventually(lambda: b"trying again" in process.stderr.readline(), "dlicmd pauses before it tries again")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130 and err.splitlines()[-1] == b"dlicmd: interrupted"


def test_a_logon_is_not_repeated(desk: Desk, fake: FakeServer, remote: list[str]) -> None:
    fake.replies["GET", "/auth/v1/logon"] = Reply(429, b"Error 429: Too many guesses.\n", {"Retry-After": "1"})
    done = desk.run("--logon", *remote[:-2], "--username", "ada", "--password", "x")
    assert done.code != 0 and len(fake.seen) == 1 and "Too many guesses" in done.err


def test_a_broken_tls_connection_is_repeated_as_any_broken_connection(pauses: list[float]) -> None:
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    with FakeServer(tls=context) as server, authority.cert_pem.tempfile() as trusted:
        server.replies["GET", EXECS] = once()
        client = dlicmd.Client("localhost", server.port, ca_cert=trusted, token=TOKEN)
        with pytest.raises(dlicmd.DlicmdError, match="not a list"):
            client.execs()
        assert len(server.seen) == 2
