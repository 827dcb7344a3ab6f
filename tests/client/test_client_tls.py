"""Remote servers: certificates are verified, TLS is never downgraded, and a token is sent only to a verified
server."""

from __future__ import annotations

import ssl
import warnings
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import trustme
from client_desk import Desk
from fake_server import BASE, TOKEN, FakeServer

from dlicmd.sdk.tls import _reason


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def secure(authority: trustme.CA) -> Iterator[FakeServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(context)
    with FakeServer(tls=context) as server:
        yield server


@pytest.fixture
def words(secure: FakeServer) -> list[str]:
    return ["--rest-host", "localhost", "--rest-port", str(secure.port), "--jwt-token", "fake-token-1"]


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> str:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(path)
    return str(path)


def test_an_unknown_authority_is_refused(desk: Desk, secure: FakeServer, words: list[str]) -> None:
    done = desk.run("--exec-get-all", *words)
    assert done.code == 8 and "--ca-cert" in done.err and len(done.err.splitlines()) == 1
    assert not secure.seen


def test_a_given_authority_is_trusted(desk: Desk, secure: FakeServer, words: list[str], ca_file: str) -> None:
    assert desk.run("--exec-get-all", *words, "--ca-cert", ca_file).code == 0
    desk.environment["DLICMD_CA_CERT"] = ca_file
    assert desk.run("--exec-get-all", *words).code == 0
    desk.model()
    done = desk.run("--exec-start", "PyTorch", "--model-dir", "model", "--model-main", "train.py", *words)
    assert done.code == 0, done
    [seen] = secure.requests("POST")
    assert seen.headers["content-length"] == str(len(seen.body)) and "transfer-encoding" not in seen.headers
    assert seen.query["args"] == ["--exec-start PyTorch --model-dir model --model-main train.py"]
    assert desk.run("--exec-get", "nobody", *words).code == 6
    wrong = desk.run("--exec-get-all", *words, "--ca-cert", str(desk.folder / "none.pem"))
    assert wrong.code == 2 and "--ca-cert" in wrong.err


def test_a_certificate_for_another_name_is_refused(desk: Desk, authority: trustme.CA, ca_file: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("elsewhere.example").configure_cert(context)
    with FakeServer(tls=context) as server:
        done = desk.run("--exec-get-all", "--rest-host", "localhost", "--rest-port", str(server.port), "--jwt-token",
                        "t", "--ca-cert", ca_file)
        assert done.code == 8 and not server.seen


def test_an_expired_certificate_is_refused(desk: Desk, authority: trustme.CA, ca_file: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    over = datetime.now(timezone.utc) - timedelta(days=1)
    authority.issue_cert("localhost", not_before=over - timedelta(days=9), not_after=over).configure_cert(context)
    with FakeServer(tls=context) as server:
        done = desk.run("--exec-get-all", "--rest-host", "localhost", "--rest-port", str(server.port), "--jwt-token",
                        "t", "--ca-cert", ca_file)
        assert done.code == 8 and "expired" in done.err and len(done.err.splitlines()) == 1 and not server.seen


def test_an_old_version_of_tls_is_refused(desk: Desk, authority: trustme.CA, ca_file: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    authority.issue_cert("localhost").configure_cert(context)
    with FakeServer(tls=context) as server:
        done = desk.run("--exec-get-all", "--rest-host", "localhost", "--rest-port", str(server.port), "--jwt-token",
                        "t", "--ca-cert", ca_file)
        assert done.code == 8 and len(done.err.splitlines()) == 1 and not server.seen


def test_insecure_prints_a_warning(desk: Desk, secure: FakeServer, words: list[str]) -> None:
    done = desk.run("--exec-get-all", *words, "--insecure")
    assert done.code == 0 and len(done.err.splitlines()) == 1 and "not verified" in done.err
    desk.environment["DLICMD_INSECURE"] = "1"
    assert desk.run("--exec-get-all", *words).code == 0


def test_a_ca_file_without_a_certificate_is_refused(desk: Desk, secure: FakeServer, words: list[str]) -> None:
    (desk.folder / "password").write_text("secret\n")
    done = desk.run("--exec-get-all", *words, "--ca-cert", "password", "-o", "json")
    assert (done.code, done.error) == (2, "client.usage") and "--ca-cert: 'password'" in done.err
    assert not secure.seen


def test_plain_http_needs_an_option(desk: Desk, fake: FakeServer) -> None:
    """`127.1` leads to the loopback interface but is in no list of its names: it stands for any other host."""
    done = desk.run("--exec-get-all", "--rest-host", "127.1", "--rest-port", str(fake.port), "--jwt-token", "secret")
    assert done.code == 8 and "--http" in done.err and len(done.err.splitlines()) == 1
    assert not fake.seen


def test_the_loopback_uses_plain_http_with_a_message(desk: Desk, fake: FakeServer) -> None:
    for host in ("localhost", "127.0.0.1"):
        where = ["--rest-host", host, "--rest-port", str(fake.port), "--jwt-token", TOKEN]
        done = desk.run("--exec-get-all", *where)
        assert done.code == 0 and done.err.count("using plain http") == 1
        fake.seen.clear()
        assert desk.run("--exec-get-all", *where, "--insecure").code == 8 and not fake.seen, "--insecure requires TLS"
    desk.environment["DLICMD_INSECURE"] = "true"
    assert desk.run("--exec-get-all", *where).code == 8 and not fake.seen


def test_the_address_of_the_local_backend_uses_plain_http(desk: Desk, local: FakeServer) -> None:
    """Scripts for a server name host, port and token; `backend.json` of the local backend says that it speaks http."""
    for host in ("localhost", "127.0.0.1"):
        where = ["--rest-host", host, "--rest-port", str(local.port)]
        assert desk.run("--exec-get-all", *where, "--jwt-token", TOKEN).code == 0
        assert desk.run("--logon", *where, "--username", "alice", "--password", "x").code == 0
        assert desk.run("--exec-get-all", *where).code == 0
        assert desk.run("--exec-get-all", *where, "--jwt-token", "other").code == 9
    assert local.seen


def test_plain_http_to_a_tls_port_of_this_machine_is_reported(desk: Desk, secure: FakeServer, words: list[str]) -> None:
    for host in ("localhost", "127.0.0.1"):
        done = desk.run("--exec-get-all", "--rest-host", host, *words[2:], "--http", "-o", "json")
        assert (done.code, done.error) == (8, "server.unreachable") and not secure.seen
        assert f"{host}:{secure.port}" in done.err and "--http" in done.err


def test_a_local_backend_with_tls_is_known_by_its_certificate(desk: Desk, authority: trustme.CA) -> None:
    """The client trusts exactly the certificate that `backend.json` names, for any host name in that certificate."""
    context, other = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), trustme.CA().issue_cert("elsewhere.example")
    issued = authority.issue_cert("elsewhere.example")
    issued.configure_cert(context)
    own, foreign = desk.folder / "own.pem", desk.folder / "foreign.pem"
    issued.cert_chain_pems[0].write_to_path(own)
    other.cert_chain_pems[0].write_to_path(foreign)
    with FakeServer(tls=context) as server:
        desk.embed(server, certificate=str(own))
        done = desk.run("--exec-get-all")
        assert (done.code, done.err) == (0, "") and "submit_time" in done.out
        desk.embed(server, certificate=str(foreign))
        done = desk.run("--exec-get-all")
        assert done.code == 8 and "127.0.0.1" in done.err and len(done.err.splitlines()) == 1
        desk.embed(server, certificate=str(desk.folder / "none.pem"))
        done = desk.run("--exec-get-all")
        assert done.code == 8 and "certificate" in done.err and "--rest-host" in done.err
        assert len(server.seen) == 1


def test_plain_http_to_a_tls_port_of_another_machine_is_reported(secure: FakeServer) -> None:
    from dlicmd.sdk.errors import Unreachable
    from dlicmd.sdk.tls import RequestsTransport
    from dlicmd.sdk.transport import Request

    with pytest.raises(Unreachable, match="http=True"):
        RequestsTransport(secure.url.replace("https:", "http:")).send(Request("GET", "/"))


def test_a_netrc_does_not_replace_the_token(desk: Desk, secure: FakeServer, words: list[str], ca_file: str) -> None:
    (desk.home / ".netrc").write_text("machine localhost login evil password evil\n")
    (desk.home / ".netrc").chmod(0o600)
    assert desk.run("--exec-get-all", *words, "--ca-cert", ca_file).code == 0
    assert secure.seen[-1].headers["authorization"] == "Bearer fake-token-1"


def test_environment_bundles_do_not_replace_verification(
    desk: Desk, secure: FakeServer, words: list[str], ca_file: str
) -> None:
    desk.environment["REQUESTS_CA_BUNDLE"] = str(desk.folder / "missing.pem")
    assert desk.run("--exec-get-all", *words, "--ca-cert", ca_file).code == 0


def test_a_proxy_gets_a_tunnel_request_or_the_whole_address(
    desk: Desk, fake: FakeServer, secure: FakeServer, words: list[str], ca_file: str
) -> None:
    """The fake server stands in for the proxy: it refuses a tunnel for https, and gets the whole address for http."""
    proxy = f"http://127.0.0.1:{fake.port}"
    desk.environment |= {"HTTPS_PROXY": proxy, "DLICMD_RETRIES": "0"}
    done = desk.run("--exec-get-all", *words, "--ca-cert", ca_file)
    assert done.code == 8 and "proxy" in done.err and not secure.seen and not fake.seen, "the proxy refuses CONNECT"
    desk.environment["NO_PROXY"] = "localhost"
    assert desk.run("--exec-get-all", *words, "--ca-cert", ca_file).code == 0 and secure.seen
    desk.environment["HTTP_PROXY"] = desk.environment["http_proxy"] = proxy
    assert desk.run("--exec-get-all", "--rest-host", "wmla.example", "--http", "--jwt-token", TOKEN).code == 0
    assert [seen.target for seen in fake.seen] == [f"http://wmla.example{BASE}/execs/"]


@pytest.mark.parametrize(("variable", "value", "said"), [
    ("HTTPS_PROXY", "socks5://127.0.0.1:1", "pip install pysocks"),
    ("REQUESTS_CA_BUNDLE", "/nowhere.pem", "/nowhere.pem, the value of REQUESTS_CA_BUNDLE or CURL"),
])
def test_a_wrong_proxy_or_bundle_is_reported_once_without_retries(
    desk: Desk, variable: str, value: str, said: str
) -> None:
    desk.environment |= {variable: value, "NO_PROXY": ""}
    done = desk.run("--exec-get-all", "--rest-host", "192.0.2.1", "--jwt-token", TOKEN)
    assert done.code == 8 and said in done.err and len(done.err.splitlines()) == 1, done


@pytest.mark.parametrize(("text", "said"), [
    ("('Connection broken: IncompleteRead(32768 bytes read, 67407 more expected)', IncompleteRead(32768 bytes read))",
     "the answer ended after 32768 bytes, 67407 more were expected"),
    ("('Connection aborted.', RemoteDisconnected('Remote end closed connection without response'))",
     "closed without an answer"),
    ("HTTPSConnectionPool(host='h', port=1): Max retries exceeded with url: /x (Caused by SSLError(SSLEOFError(8, "
     "'[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred in violation of protocol (_ssl.c:1006)')))",
     "closed during the TLS handshake"),
    ("(Caused by NewConnectionError('<x>: [Errno 111] Connection refused'))", "Connection refused"),
])
def test_errors_of_libraries_are_reported_in_plain_words(text: str, said: str) -> None:
    assert _reason(OSError(text)) == said
