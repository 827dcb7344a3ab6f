"""Signs the tokens of logon (JWT, RS256), and verifies its own signatures.

The keys are files in one folder, made on first use: `<made>-<random>.pem`. `made` is in epoch seconds, and the whole
stem is the id of the key (`kid`). The newest key signs for ROTATE seconds; then a new key is made. Old keys whose
tokens have all expired are removed at that time. A token without its key is invalid: to invalidate all tokens, remove
the folder and restart the server.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from jwt.types import Options

from local_backend.files import write_atomic

#: Seconds for which a key signs.
ROTATE = 30 * 86400
_ALGORITHM = "RS256"
_BITS = 2048
_NAME = re.compile(r"([0-9]{1,12})-[0-9a-f]{16}")
_REQUIRED = ["sub", "exp", "iat", "jti"]


class SigningKeys:
    """The keys in `folder`. Tokens are valid for at most `lifetime` seconds."""

    def __init__(self, folder: Path, lifetime: float) -> None:
        self._folder = folder
        self._lifetime = lifetime
        self._lock = threading.Lock()
        self._keys: dict[str, RSAPrivateKey] | None = None

    def sign(self, claims: dict[str, Any]) -> str:
        """Return a token with these claims (at least `sub`, `iat` and `exp`) and an id of its own. Raises OSError when
        a key cannot be read or made."""
        with self._lock:
            keys = self._loaded()
            newest = max(keys, key=_made, default=None)
            if newest is None or _made(newest) + ROTATE <= time.time():
                newest = self._renew(keys)
            key = keys[newest]
        return jwt.encode({**claims, "jti": secrets.token_hex(16)}, key, _ALGORITHM, headers={"kid": newest})

    def claims(self, token: str) -> dict[str, Any] | None:
        """Return the claims of a token that one of these keys signed; None for any other token, and for an expired one.
        Raises OSError when the keys cannot be read."""
        try:
            kid = jwt.get_unverified_header(token).get("kid")
            with self._lock:
                key = self._loaded().get(kid) if isinstance(kid, str) else None
            if key is None:
                return None
            options: Options = {"require": _REQUIRED, "verify_aud": False}
            return jwt.decode(token, key.public_key(), [_ALGORITHM], options)
        except (jwt.PyJWTError, ValueError):
            return None

    def troubles(self) -> list[OSError]:
        """Return one error for each key file that cannot be used. Raises OSError when the folder cannot be read."""
        found = []
        for path in sorted(self._folder.iterdir()) if self._folder.is_dir() else ():
            try:
                if path.suffix == ".pem" and _NAME.fullmatch(path.stem):
                    _read(path)
            except OSError as problem:
                found.append(problem)
        return found

    def _loaded(self) -> dict[str, RSAPrivateKey]:
        if self._keys is None:
            found = self._folder.glob("*.pem") if self._folder.is_dir() else ()
            self._keys = {path.stem: _read(path) for path in found if _NAME.fullmatch(path.stem)}
        return self._keys

    def _renew(self, keys: dict[str, RSAPrivateKey]) -> str:
        """Make a key, and return its id. Remove the keys whose tokens have all expired."""
        name = f"{int(time.time())}-{secrets.token_hex(8)}"
        key = generate_private_key(65537, _BITS)
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        self._folder.mkdir(mode=0o700, exist_ok=True)
        write_atomic(self._path(name), pem)
        keys[name] = key
        for old in [old for old in keys if _made(old) + ROTATE + self._lifetime < time.time()]:
            self._path(old).unlink(missing_ok=True)
            del keys[old]
        return name

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.pem"


def _made(name: str) -> int:
    return int(name.partition("-")[0])


def _read(path: Path) -> RSAPrivateKey:
    """Return the private key in a file. Raises OSError, also when the content is not a private key."""
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except ValueError:
        key = None
    if not isinstance(key, RSAPrivateKey):
        raise OSError(0, "the file does not contain a private key of the server; remove the file", str(path))
    return key
