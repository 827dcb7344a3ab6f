"""The bytes that an eavesdropper reads if a server is not trusted: no token, no password, no clear text."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import trustme
from client_desk import Desk
from fake_server import BASE, FakeServer, Reply

SECRETS = ("bearer-on-the-wire", "password-on-the-wire")
#: The first byte of each TLS record: change of ciphers, alert, handshake, data.
RECORDS = (0x14, 0x15, 0x16, 0x17)


class Sniffer:
    """A proxy that forwards connections to a port and records the bytes of each client."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.heard: list[bytearray] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                self.heard.append(bytearray())
                threading.Thread(target=self._carry, args=(client, self.heard[-1]), daemon=True).start()

    def _carry(self, client: socket.socket, heard: bytearray) -> None:
        with client, socket.create_connection(("127.0.0.1", self._to)) as server, suppress(OSError):
            threading.Thread(target=self._back, args=(server, client), daemon=True).start()
            while piece := client.recv(1 << 16):
                heard += piece
                server.sendall(piece)

    @staticmethod
    def _back(server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while piece := server.recv(1 << 16):
                client.sendall(piece)
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def sniff() -> Iterator[Callable[[FakeServer], Sniffer]]:
    running: list[Sniffer] = []

    def begin(server: FakeServer) -> Sniffer:
        running.append(Sniffer(server.port))
        return running[-1]

    yield begin
    for one in running:
        one.close()


def commands(desk: Desk) -> list[list[str]]:
    """Return a command that sends a token, one that sends a password and one that sends a folder."""
    desk.model()
    return [["--exec-get-all", "--jwt-token", SECRETS[0]], ["--logon", "--username", "alice", "--password", SECRETS[1]],
            ["--exec-start", "PyTorch", "--model-dir", "model", "--model-main", "train.py", "--jwt-token", SECRETS[0]]]


def context(authority: trustme.CA, name: str = "localhost", over: bool = False, old: bool = False) -> ssl.SSLContext:
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ends = datetime.now(timezone.utc) + timedelta(days=-1 if over else 1)
    authority.issue_cert(name, not_before=ends - timedelta(days=9), not_after=ends).configure_cert(found)
    if old:
        found.set_ciphers("DEFAULT:@SECLEVEL=0")
        found.options |= ssl.OP_NO_TLSv1_2 | ssl.OP_NO_TLSv1_3
    return found


@pytest.mark.parametrize("wrong", ["unknown authority", "other name", "over", "old version", "no TLS"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_untrusted_server_receives_no_clear_text(
    desk: Desk, sniff: Callable[[FakeServer], Sniffer], wrong: str, tmp_path: Path
) -> None:
    known = trustme.CA()
    known.cert_pem.write_to_path(tmp_path / "ca.pem")
    issuer = trustme.CA() if wrong == "unknown authority" else known
    tls = None if wrong == "no TLS" else context(
        issuer, "elsewhere.example" if wrong == "other name" else "localhost", wrong == "over", wrong == "old version")
    # `127.1` leads to the loopback interface but is not a known name of it, so http needs --http.
    host = "127.1" if tls is None else "localhost"
    with FakeServer(tls=tls) as server:
        sniffer = sniff(server)
        for words in commands(desk):
            done = desk.run(*words, "--rest-host", host, "--rest-port", str(sniffer.port), "--ca-cert",
                            str(tmp_path / "ca.pem"))
            assert done.code == 8 and not server.seen, done
        assert sniffer.heard
        for heard in sniffer.heard:
            assert not heard or heard[0] in RECORDS, bytes(heard[:80])
            assert not any(secret.encode() in heard for secret in SECRETS)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_redirect_receives_no_secret(
    desk: Desk, sniff: Callable[[FakeServer], Sniffer], scheme: str, tmp_path: Path
) -> None:
    known = trustme.CA()
    known.cert_pem.write_to_path(tmp_path / "ca.pem")
    elsewhere = FakeServer(tls=context(known) if scheme == "https" else None)
    with FakeServer(tls=context(known)) as server, elsewhere as other:
        sniffer = sniff(other)
        away = Reply(302, b"", {"Location": f"{scheme}://localhost:{sniffer.port}{BASE}/execs/"})
        server.replies |= {(method, path): away for method in ("GET", "POST")
                           for path in (f"{BASE}/execs/", f"{BASE}/conf", "/auth/v1/logon")}
        for words in commands(desk):
            done = desk.run(*words, "--rest-host", "localhost", "--rest-port", str(server.port), "--ca-cert",
                            str(tmp_path / "ca.pem"))
            assert done.code not in (0, 2) and len(done.err.splitlines()) <= 3, done
        assert server.seen and not other.seen and not sniffer.heard


def test_the_sniffer_reads_clear_text(
    desk: Desk, fake: FakeServer, sniff: Callable[[FakeServer], Sniffer]
) -> None:
    """Proves that the tests above can fail."""
    sniffer = sniff(fake)
    with closing(sniffer):
        desk.run("--exec-get-all", "--rest-host", "127.1", "--rest-port", str(sniffer.port), "--http", "--jwt-token",
                 SECRETS[0])
        assert any(SECRETS[0].encode() in heard for heard in sniffer.heard)
