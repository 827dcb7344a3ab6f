"""Findings of `doctor` about keys, certificates and files that wait to be forwarded."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from live_server import settings_for

from local_backend.services.health import OK, PROBLEM, WARNING, Finding
from local_backend.serving.doctor import Patient, examine
from local_backend.serving.self_signed import SelfSigned
from local_backend.serving.server import make_home
from local_backend.signing import SigningKeys

Look = Callable[..., list[Finding]]


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Look:
    monkeypatch.setattr("local_backend.serving.doctor._torch", lambda _: iter(()))

    def found(check: str, **more: object) -> list[Finding]:
        settings = settings_for(tmp_path / "home", **more)
        make_home(settings)
        return [one for one in examine(Patient(settings, None, dict)) if one.check == check]

    return found


def certificate(folder: Path, ends: datetime) -> dict[str, Path]:
    """Return settings with a certificate that expires at `ends`."""
    made = trustme.CA().issue_cert("localhost", not_after=ends)
    made.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    made.private_key_pem.write_to_path(folder / "key.pem")
    (folder / "key.pem").chmod(0o600)
    return {"tls_cert": folder / "cert.pem", "tls_key": folder / "key.pem"}


def test_a_sound_home_has_no_findings(look: Look, tmp_path: Path) -> None:
    for check in ("home", "keys", "tls", "forwarding"):
        assert [one.level for one in look(check)] == [OK], check
    SigningKeys(tmp_path / "home" / "keys", 60).sign({"sub": "x", "iat": 0, "exp": 1})
    SelfSigned(tmp_path / "home" / "tls", ["h"]).make()
    (tmp_path / "home" / "tls" / "ca.pem").chmod(0o644)
    (tmp_path / "home" / "forwarding" / "local-1.json").write_text("{}")
    (tmp_path / "home" / "forwarding" / "local-1.json").chmod(0o600)
    for check in ("home", "keys", "tls", "forwarding"):
        assert {one.level for one in look(check, tls_self_signed=True)} == {OK}, check


@pytest.mark.parametrize("name", ["keys/1-0123456789abcdef.pem", "tls/server.pem", "forwarding/local-1.json",
                                  "audit.log", "audit.log.3", "served.json"])
def test_a_secret_readable_by_others_is_a_problem(look: Look, tmp_path: Path, name: str) -> None:
    look("home")
    file = tmp_path / "home" / name
    file.parent.mkdir(mode=0o700, exist_ok=True)
    file.write_text("")
    file.chmod(0o640)
    [found] = look("home")
    assert found.level == PROBLEM and found.do == f"chmod 600 {file}"
    file.chmod(0o600)
    if file.parent.name != "home":
        file.parent.chmod(0o755)
        [found] = look("home")
        assert found.level == PROBLEM and found.do == f"chmod 700 {file.parent}"


def test_an_unreadable_key_is_a_problem(look: Look, tmp_path: Path) -> None:
    look("keys")
    (tmp_path / "home" / "keys").mkdir(mode=0o700)
    (tmp_path / "home" / "keys" / "1-0123456789abcdef.pem").write_text("nonsense")
    [found] = look("keys")
    assert found.level == PROBLEM and "1-0123456789abcdef.pem" in found.what


@pytest.mark.parametrize(("days", "level", "word"), [
    (-1, PROBLEM, "expired"), (5, WARNING, "expires"), (90, OK, "expires"),
])
def test_expired_certificates_are_problems_and_expiring_ones_warnings(
    look: Look, tmp_path: Path, days: int, level: str, word: str
) -> None:
    end = datetime.now(timezone.utc) + timedelta(days=days)
    [found] = look("tls", **certificate(tmp_path, end))
    assert found.level == level and found.what == f"{tmp_path / 'cert.pem'} {word} on {end:%Y-%m-%d}"
    assert bool(found.do) == (level != OK)


def test_unusable_certificates_and_keys_are_problems(look: Look, tmp_path: Path) -> None:
    more = certificate(tmp_path, datetime.now(timezone.utc) + timedelta(days=90))
    more["tls_key"].chmod(0o644)
    assert [(one.level, one.do) for one in look("tls", **more)][1] == (PROBLEM, f"chmod o= {more['tls_key']}")
    more["tls_key"].unlink()
    more["tls_cert"].write_text("nonsense")
    first, second = look("tls", **more)
    assert str(more["tls_cert"]) in first.what and "--tls-cert" in first.do
    assert "cannot read" in second.what and second.level == PROBLEM
    look("tls")
    (tmp_path / "home" / "tls").mkdir(mode=0o700)
    (tmp_path / "home" / "tls" / "server.pem").write_text("nonsense")
    assert look("tls", tls_self_signed=True)[0].do


def test_a_key_of_another_certificate_is_a_problem(look: Look, tmp_path: Path) -> None:
    end = datetime.now(timezone.utc) + timedelta(days=90)
    more = certificate(tmp_path, end)
    key = more["tls_key"].read_bytes()
    certificate(tmp_path, end)
    assert [one.level for one in look("tls", **more)] == [OK]
    more["tls_key"].write_bytes(key)
    assert [one.level for one in look("tls", **more)] == [OK, PROBLEM]


def test_an_encrypted_key_is_a_problem(look: Look, tmp_path: Path) -> None:
    more = certificate(tmp_path, datetime.now(timezone.utc) + timedelta(days=90))
    found = serialization.load_pem_private_key(more["tls_key"].read_bytes(), None)
    more["tls_key"].write_bytes(found.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")))
    assert [one.level for one in look("tls", **more)] == [OK, PROBLEM]


def test_a_damaged_forwarding_order_is_a_warning(look: Look, tmp_path: Path) -> None:
    look("forwarding")
    (tmp_path / "home" / "forwarding" / "local-1.json").write_text('{"exec')
    [found] = look("forwarding")
    assert found.level == WARNING and "local-1.json" in found.what
