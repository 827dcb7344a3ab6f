"""The keys that sign tokens: created when needed, renewed by age, removed when no token depends on them."""

from __future__ import annotations

import time
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from local_backend import signing
from local_backend.signing import ROTATE, SigningKeys

LIFETIME = 3600.0


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ready-made keys of 2048 bits, because keys are slow to generate."""
    spare = [rsa.generate_private_key(65537, 2048) for _ in range(2)]
    monkeypatch.setattr(signing, "generate_private_key", lambda *_: spare.pop())


def claims() -> dict[str, object]:
    return {"sub": "bob", "iat": int(time.time()), "exp": int(time.time()) + 600}


def aged(folder: Path, seconds: float) -> None:
    """Make the only key of a folder older."""
    (path,) = folder.iterdir()
    made, _, rest = path.name.partition("-")
    path.rename(folder / f"{int(int(made) - seconds)}-{rest}")


def test_the_first_signature_creates_a_key(tmp_path: Path) -> None:
    keys = SigningKeys(tmp_path / "keys", LIFETIME)
    assert keys.claims("a.b.c") is None and not (tmp_path / "keys").exists()
    one, two = keys.sign(claims()), keys.sign(claims())
    assert one != two and keys.claims(one) and keys.claims(two)
    assert len(list((tmp_path / "keys").iterdir())) == 1
    assert SigningKeys(tmp_path / "keys", LIFETIME).claims(one), "the next server does not know the key"


def test_an_old_key_signs_no_tokens_but_verifies_them_while_they_live(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    SigningKeys(folder, LIFETIME).sign(claims())
    aged(folder, ROTATE + LIFETIME / 2)
    keys = SigningKeys(folder, LIFETIME)
    old = jwt.encode({**claims(), "jti": "1"}, next(iter(keys._loaded().values())), "RS256",
                     headers={"kid": next(iter(keys._loaded()))})
    assert keys.claims(old)
    new = keys.sign(claims())
    assert jwt.get_unverified_header(new)["kid"] != jwt.get_unverified_header(old)["kid"]
    assert keys.claims(old) and keys.claims(new) and len(list(folder.iterdir())) == 2


def test_a_key_without_tokens_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    SigningKeys(folder, LIFETIME).sign(claims())
    aged(folder, ROTATE + LIFETIME + 60)
    before = set(folder.iterdir())
    SigningKeys(folder, LIFETIME).sign(claims())
    assert len(list(folder.iterdir())) == 1 and not before & set(folder.iterdir())


def test_expired_and_incomplete_tokens_are_refused(tmp_path: Path) -> None:
    keys = SigningKeys(tmp_path / "keys", LIFETIME)
    assert keys.claims(keys.sign(claims() | {"exp": int(time.time()) - 1})) is None
    assert keys.claims(keys.sign({"sub": "bob"})) is None


def test_a_file_without_a_key_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "1-0123456789abcdef.pem").write_text("nonsense")
    (tmp_path / "notes.txt").write_text("left alone")
    with pytest.raises(OSError, match="private key") as problem:
        SigningKeys(tmp_path, LIFETIME).sign(claims())
    assert problem.value.filename.endswith(".pem")
