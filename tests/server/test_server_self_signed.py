"""`serve --tls-self-signed`: clients can verify the certificate, it is renewed in time, and the authority stays."""

from __future__ import annotations

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
from live_server import TOKEN, Live, settings_for

from dlicmd.contract import wire
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
    authority = made(tmp_path, "gpu.example").authority.read_bytes()
    assert not SelfSigned(tmp_path, ["gpu.example", "gpu.example"]).make(NOW)
    other = SelfSigned(tmp_path, ["gpu.example", "new.example"])
    assert other.make(NOW) and other.authority.read_bytes() == authority


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
    assert {"gpu.example", "other.example", "box"} <= names_of("box", ("gpu.example", "other.example"))
    everywhere = names_of("0.0.0.0", ())
    assert "127.0.0.1" in everywhere and "0.0.0.0" not in everywhere


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
