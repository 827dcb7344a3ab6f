"""Scripts of the original client contact servers whose certificate cannot be verified. The client stores the
certificate at the first contact, and later accepts only that one."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from client_desk import Desk
from fake_server import TOKEN, FakeServer, Reply

LOGON = "/auth/v1/logon"


@contextlib.contextmanager
def serving(name: str = "localhost") -> Iterator[FakeServer]:
    """Run a server with a certificate that this machine cannot verify."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert(name).configure_cert(context)
    with FakeServer(tls=context) as server:
        yield server


@pytest.fixture
def far() -> Iterator[FakeServer]:
    with serving() as server:
        server.replies["GET", LOGON] = Reply(200, json.dumps({"accessToken": "t-1", "user": "bob"}).encode())
        yield server


@pytest.fixture(autouse=True)
def as_original(desk: Desk) -> None:
    desk.environment["DLICMD_COMPAT"] = "wmla"


def words(server: FakeServer, *more: str) -> list[str]:
    return ["--rest-host", "localhost", "--rest-port", str(server.port), *more]


def pins(desk: Desk) -> Path:
    return desk.home / ".dlicmd.certificates"


def test_the_first_contact_stores_the_certificate_and_reports_it_once(desk: Desk, far: FakeServer) -> None:
    (desk.home / ".dlicmd").write_text(TOKEN)
    (desk.home / ".dlicmd").chmod(0o600)
    first = desk.run("--exec-get-all", *words(far))
    assert first.code == 0 and first.err.count("\n") == 1 and f"localhost:{far.port}" in first.err
    where, fingerprint = pins(desk).read_text().split()
    assert where == f"localhost:{far.port}" and len(fingerprint) == 64 and fingerprint in first.err
    assert stat.S_IMODE(pins(desk).stat().st_mode) == 0o600
    assert (desk.home / ".dlicmd").read_text() == TOKEN, "scripts read this file as a bare token"
    second = desk.run("--exec-get-all", *words(far))
    assert (second.code, second.err, second.out) == (0, "", first.out)


def test_another_certificate_is_refused_later(desk: Desk, far: FakeServer) -> None:
    assert desk.run("--exec-get-all", *words(far, "--jwt-token", TOKEN)).code == 0
    with serving() as other:
        pins(desk).write_text(pins(desk).read_text().replace(str(far.port), str(other.port)))
        for command in (["--exec-get-all", "--jwt-token", TOKEN], ["--logon", "--username", "u", "--password", "p"]):
            for more in ({}, {"DLICMD_COMPAT_TLS": "trust-first"}):
                desk.environment |= more
                done = desk.run(*command, *words(other))
                assert done.code == 1 and str(pins(desk)) in done.out and done.out.count("\n") == 1
        assert not other.seen


def test_a_password_is_not_sent_at_the_first_contact_without_a_terminal(desk: Desk, far: FakeServer) -> None:
    done = desk.run("--logon", *words(far, "--username", "bob", "--password", "hidden"))
    assert done.code == 1 and done.out.count("\n") == 1 and "DLICMD_COMPAT_TLS=trust-first" in done.out
    assert not far.seen and not pins(desk).exists() and "hidden" not in done.out + done.err


def test_a_password_is_sent_if_first_contacts_are_trusted(desk: Desk, far: FakeServer) -> None:
    desk.environment["DLICMD_COMPAT_TLS"] = "trust-first"
    done = desk.run("--logon", *words(far, "--username", "bob", "--password", "hidden"))
    assert done.code == 0 and json.loads(done.out) == {"accessToken": "t-1", "user": "bob"}, "the token is shown"
    assert (desk.home / ".dlicmd").read_text() == "t-1" and done.err.count("\n") == 1


def test_a_password_is_sent_to_a_stored_certificate(desk: Desk, far: FakeServer) -> None:
    assert desk.run("--exec-get-all", *words(far, "--jwt-token", TOKEN)).code == 0
    done = desk.run("--logon", *words(far, "--username", "bob", "--password", "hidden"))
    assert (done.code, done.err) == (0, "")


@pytest.mark.parametrize(("typed", "code"), [("y", 0), ("n", 1), ("", 1)])
def test_a_terminal_is_asked_before_a_password_is_sent(desk: Desk, far: FakeServer, typed: str, code: int) -> None:
    ours, theirs = pty.openpty()
    os.write(ours, f"{typed}\n".encode())
    with desk.start("--logon", *words(far, "--username", "bob", "--password", "hidden"), stdin=theirs) as process:
        out, err = process.communicate(timeout=60)
        assert process.returncode == code, out
    os.close(ours)
    os.close(theirs)
    assert b"SHA-256" in err and bool(far.seen) == (code == 0) == pins(desk).exists()


def test_the_ordinary_client_does_not_trust_a_first_contact(desk: Desk, far: FakeServer) -> None:
    del desk.environment["DLICMD_COMPAT"]
    desk.environment["DLICMD_COMPAT_TLS"] = "trust-first"
    done = desk.run("--exec-get-all", *words(far, "--jwt-token", TOKEN, "-o", "json"))
    assert done.code == 8 and not far.seen and not pins(desk).exists()


@pytest.mark.parametrize("content", [b"[]", b"localhost:1 abc\n", b"\xff"])
def test_a_damaged_file_of_certificates_is_reported(desk: Desk, far: FakeServer, content: bytes) -> None:
    pins(desk).write_bytes(content)
    done = desk.run("--exec-get-all", *words(far, "--jwt-token", TOKEN))
    assert done.code == 1 and str(pins(desk)) in done.out and not far.seen and pins(desk).read_bytes() == content
