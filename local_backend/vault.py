"""Seals what is secret before it reaches the disk: values of --msd-env, passwords of connections.

The keys are in one file, made when something is first sealed: a key a line (Fernet: AES and HMAC), the first one seals,
all of them open. Who has the file and what was sealed has the secret: it keeps copies of the database, and its backups,
from being worth anything, not the user of the server from himself.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from local_backend.files import sync_directory, write_atomic

if TYPE_CHECKING:
    from cryptography.fernet import MultiFernet

#: What it is made with; imported when it is needed, or before, to save that time.
LIBRARY = "cryptography.fernet"


class VaultError(Exception):
    """What was sealed cannot be opened, or nothing can be sealed; the text says why and what to do, and no secret."""


class Vault:
    """The keys in `file`, which is read anew for every use: it may be put back, or get another key, at any time."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def seal(self, secret: bytes) -> bytes:
        """`secret` as it may lie on a disk: printable ASCII. Makes the key when there is none. Raises VaultError."""
        try:
            if not self._file.exists():
                self._make()
        except OSError as problem:
            raise VaultError(f"no key can be made in {self._file}: {problem.strerror or problem}") from None
        return self._keys().encrypt(secret)

    def open(self, sealed: bytes) -> bytes:
        """Inverse of `seal`. Raises VaultError."""
        from cryptography.fernet import InvalidToken

        try:
            return self._keys().decrypt(sealed)
        except InvalidToken:
            raise VaultError(f"it was sealed with a key that is not in {self._file}, or is damaged; put the key back "
                             "from a copy of that file, or give the secret again") from None

    def seal_text(self, secret: str) -> str:
        """`seal` of a text."""
        return self.seal(secret.encode()).decode("ascii")

    def open_text(self, sealed: str) -> str:
        """`open` of a text. Raises VaultError."""
        return self.open(sealed.encode()).decode()

    def check(self) -> None:
        """Raise VaultError when the file is there and holds no keys, or others may read it."""
        if self._file.exists():
            self._keys()
            if self._file.stat().st_mode & 0o077:
                raise VaultError(f"others may read {self._file}: chmod 600 {self._file}")

    def renew(self) -> None:
        """Seal with a new key from now on. Raises VaultError."""
        from cryptography.fernet import Fernet

        self._keys()
        self._write(Fernet.generate_key() + b"\n" + self._file.read_bytes())

    def forget_old(self) -> None:
        """Keep the key that seals only: nothing that others have sealed is left. Raises VaultError."""
        self._write(self._file.read_bytes().split(b"\n")[0] + b"\n")

    def _write(self, content: bytes) -> None:
        try:
            write_atomic(self._file, content)
        except OSError as problem:
            raise VaultError(f"cannot write {self._file}: {problem.strerror or problem}") from None

    def _make(self) -> None:
        """The first key. Of several that make one at once, one wins, and all use that."""
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
            return MultiFernet([Fernet(line) for line in self._file.read_bytes().split()])
        except FileNotFoundError:
            raise VaultError(f"there is no {self._file}, which has the key that it was sealed with; put it back from a "
                             "copy, or give the secret again") from None
        except OSError as problem:
            raise VaultError(f"cannot read {self._file}: {problem.strerror or problem}") from None
        except ValueError:  # also of an empty file
            raise VaultError(f"{self._file} holds no keys, or damaged ones; put it back from a copy") from None
