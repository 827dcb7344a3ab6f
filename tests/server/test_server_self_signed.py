"""`serve --tls-self-signed`: clients can verify the certificate, it is renewed in time, and the authority stays."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import stat
import subprocess
import urllib.error
import urllib.request
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from live_server import TOKEN, Live, settings_for

from dlicmd.contract import wire
from local_backend.serving import self_signed
from local_backend.serving.self_signed import SelfSigned, names_of
from local_backend.serving.server import ServingError, check_network
from local_backend.serving.web_server import Server, make_server

NOW = datetime(2026, 6, 1, tzinfo=timezone.utc)


def made(folder: Path, *names: str) -> SelfSigned:
    found = SelfSigned(folder, names)
    assert found.make(NOW)
    return found


def certificate(found: SelfSigned) -> x509.Certificate:
    return x509.load_pem_x509_certificate(found.server.read_bytes())


def test_a_certificate_has_the_names_of_the_server(tmp_path: Path) -> None:
    found = made(tmp_path / "tls", "gpu.example", "192.0.2.7", "[2001:db8::1]", "not a näme")
    names = certificate(found).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert set(names.get_values_for_type(x509.DNSName)) >= {"gpu.example", "localhost"}
    addresses = {str(address) for address in names.get_values_for_type(x509.IPAddress)}
    assert addresses == {"192.0.2.7", "2001:db8::1", "127.0.0.1", "::1"}
    for path in (tmp_path / "tls").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "tls").stat().st_mode) == 0o700
    assert "PRIVATE" not in found.authority.read_text()


def test_a_certificate_is_kept_until_shortly_before_its_end(tmp_path: Path) -> None:
    found = made(tmp_path, "gpu.example")
    first, authority = found.server.read_bytes(), found.authority.read_bytes()
    assert not found.make(NOW + timedelta(days=334)) and found.server.read_bytes() == first
    assert found.make(NOW + timedelta(days=336)) and found.server.read_bytes() != first
    assert found.authority.read_bytes() == authority, "the authority that clients trust has changed"
    assert certificate(found).not_valid_after_utc == NOW + timedelta(days=336 + 365)
    assert not found.make(NOW + timedelta(days=336))


def test_other_names_need_another_certificate(tmp_path: Path) -> None:
    authority = made(tmp_path, "gpu.example", "old.example").authority.read_bytes()
    assert not SelfSigned(tmp_path, ["gpu.example", "old.example", "gpu.example"]).make(NOW)
    fewer = SelfSigned(tmp_path, ["gpu.example"])
    assert fewer.make(NOW) and fewer.authority.read_bytes() == authority
    other = SelfSigned(tmp_path, ["gpu.example", "new.example"])
    assert other.make(NOW) and other.authority.read_bytes() != authority, "the authority must not sign for a new name"
    assert not other.make(NOW)


def constraints(found: SelfSigned) -> x509.NameConstraints:
    authority = x509.load_pem_x509_certificate(found.authority.read_bytes())
    extension = authority.extensions.get_extension_for_class(x509.NameConstraints)
    assert extension.critical
    return extension.value


def test_an_authority_may_sign_for_the_names_of_the_server_alone(tmp_path: Path) -> None:
    found = SelfSigned(tmp_path, ["gpu.example", "*.many.example"], ["192.0.2.7"])
    assert found.make(NOW)
    permitted = {str(one.value) for one in constraints(found).permitted_subtrees or ()}
    assert permitted == {"gpu.example", "many.example", "localhost", "127.0.0.1/32", "::1/128", "192.0.2.7/32"}


def test_a_new_address_of_the_machine_is_left_out_and_the_authority_stays(tmp_path: Path) -> None:
    first = SelfSigned(tmp_path, ["gpu.example"], ["192.0.2.7"])
    first.make(NOW)
    authority = first.authority.read_bytes()
    later = SelfSigned(tmp_path, ["gpu.example"], ["192.0.2.7", "192.0.2.8"])
    assert not later.make(NOW) and later.authority.read_bytes() == authority
    named = SelfSigned(tmp_path, ["gpu.example", "192.0.2.8"])
    assert named.make(NOW) and named.authority.read_bytes() != authority


def test_an_authority_of_an_earlier_version_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as earlier:
        plain = x509.CertificateBuilder.add_extension
        earlier.setattr(x509.CertificateBuilder, "add_extension", lambda self, one, critical: (
            self if isinstance(one, x509.NameConstraints) else plain(self, one, critical)))
        authority = made(tmp_path, "gpu.example").authority.read_bytes()
    other = SelfSigned(tmp_path, ["gpu.example", "new.example"])
    assert other.make(NOW) and other.authority.read_bytes() == authority
    renewed = NOW + timedelta(days=3300)
    assert other.make(renewed) and constraints(other)


def test_programs_refuse_another_name_of_a_constrained_authority(tmp_path: Path) -> None:
    """A thief of the key cannot use it for other servers."""
    found = SelfSigned(tmp_path, ["gpu.example"])
    found.make()
    ours = verified_by_openssl(found)
    key, authority = self_signed._read(tmp_path / "authority.pem") or pytest.fail("no authority")
    for name in ("other.example", "192.0.2.9"):
        stolen, leaf = self_signed._issued((key, authority), self_signed._generals([name]), datetime.now(timezone.utc))
        found.server.write_bytes(self_signed._private(stolen) + leaf.public_bytes(serialization.Encoding.PEM))
        assert ours and "permitted subtree violation" in verified_by_openssl(found), name
        context = ssl.create_default_context(cafile=str(found.authority))
        with pytest.raises(ssl.SSLCertVerificationError, match="subtree"):
            handshake(found.server, context, name)


def verified_by_openssl(found: SelfSigned) -> str:
    """Return the output of `openssl verify` for the server's certificate."""
    try:
        done = subprocess.run(["openssl", "verify", "-x509_strict", "-CAfile", str(found.authority), str(found.server)],
                              capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    return done.stdout + done.stderr


def handshake(server: Path, context: ssl.SSLContext, name: str) -> None:
    """Make a TLS connection within this process."""
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(server)
    theirs = [ssl.MemoryBIO() for _ in range(2)]
    client = context.wrap_bio(theirs[0], theirs[1], server_hostname=name)
    served = ours.wrap_bio(theirs[1], theirs[0], server_side=True)
    for side in (client, served, client, served, client):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_and_python_accept_a_constrained_authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = SelfSigned(tmp_path / "tls", ["gpu.example"])
    own.make()
    assert verified_by_openssl(own).endswith(": OK\n")
    monkeypatch.setattr("live_server.make_server", lambda guard, settings: make_server(guard, settings, own))
    live = Live(settings_for(tmp_path / "home", embedded=False, tls_self_signed=True, allowed_hosts=("gpu.example",)))
    try:
        for host in ("localhost", "127.0.0.1", "gpu.example"):
            done = subprocess.run(
                ["curl", "-sS", "--fail", "--cacert", str(own.authority), "--noproxy", "*", "--resolve",
                 f"gpu.example:{live.port}:127.0.0.1", f"https://{host}:{live.port}/healthz"],
                capture_output=True, text=True, check=False, timeout=60)
            assert done.stdout == "ok\n", done.stderr
    finally:
        live.close()


def test_an_authority_near_its_end_is_replaced(tmp_path: Path) -> None:
    found = made(tmp_path)
    before = found.fingerprint()
    later = NOW + timedelta(days=3300)
    assert found.make(later) and found.fingerprint() != before
    assert certificate(found).not_valid_after_utc > later + timedelta(days=300)
    certificate(found).verify_directly_issued_by(x509.load_pem_x509_certificate(found.authority.read_bytes()))


def test_a_lost_copy_is_written_again_and_a_broken_key_is_named(tmp_path: Path) -> None:
    found = made(tmp_path)
    authority = found.authority.read_bytes()
    found.authority.write_text("something else")
    assert not found.make(NOW) and found.authority.read_bytes() == authority
    (tmp_path / "authority.pem").write_text("nonsense")
    with pytest.raises(OSError, match="remove") as problem:
        found.make(NOW)
    assert problem.value.filename.endswith("authority.pem")


def test_the_fingerprint_is_that_of_openssl(tmp_path: Path) -> None:
    found = made(tmp_path)
    try:
        said = subprocess.run(
            ["openssl", "x509", "-noout", "-fingerprint", "-sha256", "-in", str(found.authority)],
            capture_output=True, text=True, check=True,
        ).stdout
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    assert said.strip().partition("=")[2] == found.fingerprint()


def test_a_server_is_known_by_its_host_and_allowed_hosts() -> None:
    names, addresses = names_of("box", ("gpu.example", "other.example"))
    assert {"gpu.example", "other.example", "box"} <= names and not addresses
    names, addresses = names_of("0.0.0.0", ())
    assert "127.0.0.1" in addresses and "0.0.0.0" not in names | addresses


def shown_by(port: int, context: ssl.SSLContext) -> bytes:
    """Return the certificate of a TLS handshake."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as raw, \
            context.wrap_socket(raw, server_hostname="localhost") as tls:
        found = tls.getpeercert(binary_form=True)
    assert found is not None
    return found


def test_a_running_server_shows_the_renewed_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = SelfSigned(tmp_path / "tls", ["gpu.example"])
    own.make()
    monkeypatch.setattr("live_server.make_server", lambda guard, settings: make_server(guard, settings, own))
    live = Live(settings_for(tmp_path / "home", embedded=False, tls_self_signed=True))
    try:
        context = ssl.create_default_context(cafile=str(own.authority))
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        before = shown_by(live.port, context)
        request = urllib.request.Request(
            f"https://localhost:{live.port}{wire.CONF}", headers={"Authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(request, timeout=60, context=context) as answer:
            assert answer.status == 200
        with pytest.raises(urllib.error.URLError, match="verify failed"):
            urllib.request.urlopen(request, timeout=60, context=ssl.create_default_context())
        assert shown_by(live.port, context) == before
        own.server.unlink()
        server: Server = live.server
        server.renew_certificate()
        assert shown_by(live.port, context) != before, "the certificate was not renewed"
    finally:
        live.close()


def test_a_self_signed_and_another_certificate_are_refused(tmp_path: Path) -> None:
    more = {"tls_cert": Path("c"), "tls_key": Path("k")}
    with pytest.raises(ServingError, match="remove --tls-cert"):
        check_network(settings_for(tmp_path, embedded=False, tls_self_signed=True, **more))


def test_a_self_signed_server_may_listen_on_all_addresses(tmp_path: Path) -> None:
    check_network(settings_for(tmp_path, embedded=False, host="0.0.0.0", tls_self_signed=True))
    with pytest.raises(ServingError, match="--tls-self-signed"):
        check_network(settings_for(tmp_path, embedded=False, host="0.0.0.0"))
