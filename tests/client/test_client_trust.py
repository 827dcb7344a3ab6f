"""`login` to a server whose certificate no known authority signed: trust by fingerprint, after a question or an
option."""

from __future__ import annotations

import contextlib
import hashlib
import json
import ssl
from collections.abc import Iterator

import pytest
import trustme
from client_desk import Desk
from fake_server import FakeServer
from screen_desk import Screen


@contextlib.contextmanager
def serving(authority: trustme.CA, name: str = "localhost", port: int = 0, whole: bool = True) -> Iterator[FakeServer]:
    """Run a server with a certificate that this machine cannot verify. `whole`: it shows its authority, too."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    issued = authority.issue_cert(name)
    issued.configure_cert(context)
    if whole:
        pem = issued.private_key_and_cert_chain_pem.bytes() + authority.cert_pem.bytes()
        with trustme.Blob(pem).tempfile() as file:
            context.load_cert_chain(file)
    with FakeServer(tls=context, port=port) as server:
        yield server


def sha256(authority: trustme.CA) -> str:
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(authority.cert_pem.bytes().decode())).hexdigest()


@pytest.fixture
def authority(desk: Desk) -> trustme.CA:
    desk.environment |= {"DLICMD_USERNAME": "alice", "DLICMD_PASSWORD": "secret"}
    return trustme.CA()


def colons(digits: str) -> str:
    return bytes.fromhex(digits).hex(":").upper()


def test_without_a_terminal_a_login_names_the_options_and_sends_nothing(desk: Desk, authority: trustme.CA) -> None:
    with serving(authority) as server:
        done = desk.run("login", f"localhost:{server.port}", "-o", "json")
        assert (done.code, done.error) == (8, "server.unreachable") and not server.seen
        assert "--ca-cert" in done.err and f"--trust-fingerprint SHA256:{colons(sha256(authority))}" in done.err


@pytest.mark.parametrize("form", ["SHA256:{}", "{}", "sha256:{:colons}"])
def test_a_server_with_the_named_authority_is_trusted_later(desk: Desk, authority: trustme.CA, form: str) -> None:
    digits = sha256(authority)
    given = form.replace("{:colons}", colons(digits)).replace("{}", digits)
    with serving(authority) as server:
        assert desk.run("login", f"localhost:{server.port}", "--trust-fingerprint", given).code == 0
        assert desk.run("ls").code == 0
        assert desk.run("--exec-get-all", "--rest-host", "localhost", "--rest-port", str(server.port)).code == 0
        port = server.port
    with serving(authority, port=port, whole=False):
        assert desk.run("ls").code == 0, "the authority verifies a renewed certificate"


@pytest.mark.parametrize("whole", [True, False])
def test_another_certificate_is_refused_later(desk: Desk, authority: trustme.CA, whole: bool) -> None:
    with serving(authority, whole=whole) as server:
        if whole:
            pin = sha256(authority)
        else:
            pin = hashlib.sha256(ssl.PEM_cert_to_DER_cert(
                ssl.get_server_certificate(("localhost", server.port)))).hexdigest()
        assert desk.run("login", f"localhost:{server.port}", "--trust-fingerprint", pin).code == 0
        assert desk.run("ls").code == 0
        port = server.port
    with serving(trustme.CA(), port=port) as other:
        for words in (["ls"], ["login", f"localhost:{port}"], ["logout"]):
            done = desk.run(*words, "-o", "json")
            assert (done.code, done.error) == (8, "server.unreachable") and not other.seen
            assert words != ["ls"] or "--trust-fingerprint" in done.err


def test_an_authority_does_not_vouch_for_another_host(desk: Desk, authority: trustme.CA) -> None:
    with serving(authority, "elsewhere.example") as server:
        done = desk.run("login", f"localhost:{server.port}", "--trust-fingerprint", sha256(authority), "-o", "json")
        assert (done.code, done.error) == (8, "server.unreachable") and not server.seen


def test_a_shown_authority_that_signed_nothing_is_not_trusted(desk: Desk, authority: trustme.CA) -> None:
    """A hostile server shows the trusted authority beside a certificate of its own."""
    context, forged = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), trustme.CA().issue_cert("localhost")
    pem = forged.private_key_pem.bytes() + forged.cert_chain_pems[0].bytes() + authority.cert_pem.bytes()
    with trustme.Blob(pem).tempfile() as file:
        context.load_cert_chain(file)
    with FakeServer(tls=context) as server:
        done = desk.run("login", f"localhost:{server.port}", "--trust-fingerprint", sha256(authority), "-o", "json")
        assert (done.code, done.error) == (8, "server.unreachable") and not server.seen


def test_a_fingerprint_must_be_a_sha256(desk: Desk) -> None:
    done = desk.run("login", "localhost:1", "--trust-fingerprint", "SHA256:12", "-o", "json")
    assert (done.code, done.error) == (2, "client.usage")


@pytest.mark.parametrize("typed", ["y", "n"])
def test_a_terminal_is_asked_once_before_the_password(desk: Desk, authority: trustme.CA, typed: str) -> None:
    del desk.environment["DLICMD_PASSWORD"]
    with serving(authority) as server:
        screen = Screen(desk, "login", f"localhost:{server.port}", columns=120)
        screen.until("Trust it for this server? [y/N]")
        assert colons(sha256(authority)) in screen.text and "valid" in screen.text and not server.seen
        screen.press(f"{typed}\r")
        if typed == "n":
            assert screen.ended() == 8 and not server.seen and "Password" not in screen.text
            return
        screen.until("Password:")
        assert not any("authorization" in seen.headers for seen in server.seen)
        screen.press("secret\r")
        assert screen.ended() == 0
        assert [row["server"] for row in json.loads(desk.run("server", "ls", "-o", "json").out)] == [
            "local", f"localhost:{server.port}"]
        assert desk.run("ls").code == 0
