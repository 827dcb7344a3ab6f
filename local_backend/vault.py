"""Seals secrets before they reach the disk: values of --msd-env, passwords of connections.

The keys are in one file, which the first sealing makes: one key per line (Fernet: AES and HMAC). The first key seals;
every key opens. The file and the sealed data together reveal the secrets. Copies and backups of the database are
worthless without the file. The vault does not protect against the user that the server runs as.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from local_backend.files import sync_directory, write_atomic

if TYPE_CHECKING:
    from cryptography.fernet import MultiFernet

#: The library that seals and opens. It is imported when needed, or earlier to save that time.
LIBRARY = "cryptography.fernet"


class VaultError(Exception):
    """A sealed value cannot be opened, or a value cannot be sealed. The text says why and what to do; it shows no
    secret."""


class Vault:
    """The keys in `file`. Every use reads the file again: a user may restore the file, or add a key, at any time."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def seal(self, secret: bytes) -> bytes:
        """Return `secret` sealed for storage on a disk: printable ASCII. Make the first key if there is none. Raises
        VaultError."""
        self._make_if_missing()
        return self._keys().encrypt(secret)

    def lines(self) -> list[bytes]:
        """Return the keys as text, from which other keys are derived. Make the first key if there is none. Raises
        VaultError."""
        self._make_if_missing()
        self._keys()
        return self._content().split()

    def open(self, sealed: bytes) -> bytes:
        """Return the secret that `seal` sealed. Raises VaultError."""
        from cryptography.fernet import InvalidToken

        try:
            return self._keys().decrypt(sealed)
        except InvalidToken:
            raise VaultError(f"its key is not in {self._file}, or the value is damaged; restore the key "
                             "from a copy of that file, or enter the secret again") from None

    def seal_text(self, secret: str) -> str:
        """Return a text sealed with `seal`. Raises VaultError."""
        return self.seal(secret.encode()).decode("ascii")

    def open_text(self, sealed: str) -> str:
        """Return the text that `seal_text` sealed. Raises VaultError."""
        return self.open(sealed.encode()).decode()

    def check(self) -> None:
        """Raise VaultError when the file exists, but holds no keys, or others may read it."""
        if self._file.exists():
            self._keys()
            if self._file.stat().st_mode & 0o077:
                raise VaultError(f"other users can read {self._file}; run chmod 600 {self._file}")

    def renew(self) -> None:
        """Make a new key that seals from now on, and keep the old keys. Raises VaultError."""
        from cryptography.fernet import Fernet

        self._keys()
        self._write(Fernet.generate_key() + b"\n" + self._content())

    def forget_old(self) -> None:
        """Remove all keys but the one that seals. The caller has sealed all values again with that key. Raises
        VaultError."""
        self._keys()
        self._write(self._content().split()[0] + b"\n")

    def _write(self, content: bytes) -> None:
        try:
            write_atomic(self._file, content)
        except OSError as problem:
            raise VaultError(f"cannot write {self._file}: {problem.strerror or problem}") from None

    def _make_if_missing(self) -> None:
        try:
            if not self._file.exists():
                self._make()
        except OSError as problem:
            raise VaultError(f"cannot make a key in {self._file}: {problem.strerror or problem}") from None

    def _make(self) -> None:
        """Make the first key. If several processes make one at the same time, one key wins, and all processes use
        it."""
        from cryptography.fernet import Fernet

        self._file.parent.mkdir(mode=0o700, exist_ok=True)
        temporary = self._file.with_name(f".{self._file.name}.{secrets.token_hex(4)}.tmp")
        write_atomic(temporary, Fernet.generate_key() + b"\n")
        try:
            os.link(temporary, self._file)
        except FileExistsError:
            pass
        finally:
            temporary.unlink()
        sync_directory(self._file.parent)

    def _keys(self) -> MultiFernet:
        from cryptography.fernet import Fernet, MultiFernet

        try:
            return MultiFernet([Fernet(line) for line in self._content().split()])
        except ValueError:  # also raised for an empty file
            raise VaultError(f"{self._file} contains no valid keys; restore it from a copy") from None

    def _content(self) -> bytes:
        try:
            return self._file.read_bytes()
        except FileNotFoundError:
            raise VaultError(f"{self._file}, which has the key of this secret, does not exist; restore it "
                             "from a copy, or enter the secret again") from None
        except OSError as problem:
            raise VaultError(f"cannot read {self._file}: {problem.strerror or problem}") from None
