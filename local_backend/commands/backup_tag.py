"""The authentication tag at the end of a backup, and the keys that make and verify it.

The tag is an empty gzip member after the content, so programs that read gzip skip it. Its extra field has a salt, a
mark of the key, and an HMAC-SHA256 over the SHA-256 of everything before. The key of the HMAC is derived with scrypt
from a line of `vault/secrets.key`, or of another key file: the first line makes tags, every line verifies them.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

from local_backend.vault import Vault, VaultError

#: gzip header with an extra field, without a time, from an unknown system; then the end of an empty member.
_HEADER, _END = b"\x1f\x8b\x08\x04\0\0\0\0\0\xff", b"\x03\0" + bytes(8)
_ID = b"dt"
_SALT, _MARK, _TAG = 16, 8, 32
_FIELD = _SALT + _MARK + _TAG
_START = _HEADER + struct.pack("<H2sH", _FIELD + 4, _ID, _FIELD)
#: Bytes of the whole member.
SIZE = len(_START) + _FIELD + len(_END)
#: Minimum length of a line in a key file, in bytes.
_SHORTEST = 16
_PIECE = 1 << 20

Advance = Callable[[int], None]


class BackupError(Exception):
    """A backup or a restore failed. The text is one line: the reason, and what to do. Nothing was changed, unless the
    text says that the home is incomplete."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


class Hashed:
    """A file that is written or read in order, with the SHA-256 of these bytes. `most` limits the bytes to read.
    `advance` is called with the number of bytes so far."""

    def __init__(self, file: IO[bytes], advance: Advance | None = None, most: int | None = None) -> None:
        self._file, self._advance, self._most = file, advance, most
        self.hash = hashlib.sha256()
        self._done = 0

    def write(self, content: bytes) -> int:
        """Write all of `content`."""
        self._file.write(content)
        self._count(content)
        return len(content)

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes, empty at the end."""
        left = None if self._most is None else self._most - self._done
        wanted = size if left is None else left if size < 0 else min(size, left)
        content = self._file.read(wanted)
        self._count(content)
        return content

    def drain(self) -> None:
        """Read the rest."""
        while self.read(_PIECE):
            pass

    def flush(self) -> None:
        """Do nothing: the owner of the file flushes it."""

    def _count(self, content: bytes) -> None:
        self.hash.update(content)
        self._done += len(content)
        if self._advance is not None:
            self._advance(self._done)


@dataclass(frozen=True)
class Tag:
    """The tag that a file has. `content` is the number of bytes before it."""

    content: int
    salt: bytes
    mark: bytes
    code: bytes

    def key(self, lines: list[bytes]) -> bytes | None:
        """Return the derived key whose mark this is, None if no line gives it."""
        keys = (_derived(line, self.salt) for line in lines)
        return next((key for key in keys if hmac.compare_digest(_mark(key), self.mark)), None)

    def fits(self, key: bytes, digest: bytes) -> bool:
        """Return whether the tag is that of a content with this SHA-256."""
        return hmac.compare_digest(_code(key, self.salt, digest), self.code)


def read_tag(file: BinaryIO) -> Tag | None:
    """Return the tag at the end of an open file; None if there is none. Raises OSError."""
    size = os.fstat(file.fileno()).st_size
    if size < SIZE:
        return None
    file.seek(size - SIZE)
    found = file.read(SIZE)
    file.seek(0)
    if not (found.startswith(_START) and found.endswith(_END)):
        return None
    field = found[len(_START):-len(_END)]
    return Tag(size - SIZE, field[:_SALT], field[_SALT:_SALT + _MARK], field[_SALT + _MARK:])


def tag(line: bytes, digest: bytes) -> bytes:
    """Return the bytes to append to a content with this SHA-256, made with the key in `line`."""
    salt = secrets.token_bytes(_SALT)
    key = _derived(line, salt)
    return _START + salt + _mark(key) + _code(key, salt, digest) + _END


def keys(vault: Path, file: Path | None, *, make: bool) -> list[bytes]:
    """Return the lines of a key file, or of the vault if `file` is None. With `make`, make the key of the vault if it
    has none. Raises BackupError."""
    try:
        if file is not None:
            lines = [line.strip() for line in file.read_bytes().splitlines() if line.strip()]
            if not lines or min(map(len, lines)) < _SHORTEST:
                raise BackupError("backup.key", f"{file} is not a key file: each line must have at least {_SHORTEST} "
                                  "characters")
            return lines
        return Vault(vault).lines() if make or vault.exists() else []
    except OSError as problem:
        raise BackupError("backup.key", f"cannot read {problem.filename}: {problem.strerror}") from None
    except VaultError as problem:
        raise BackupError("backup.key", str(problem)) from None


def _derived(line: bytes, salt: bytes) -> bytes:
    return hashlib.scrypt(line, salt=salt, n=1 << 14, r=8, p=1, dklen=32)


def _mark(key: bytes) -> bytes:
    return hmac.digest(key, b"key", "sha256")[:_MARK]


def _code(key: bytes, salt: bytes, digest: bytes) -> bytes:
    return hmac.digest(key, b"content" + salt + digest, "sha256")
