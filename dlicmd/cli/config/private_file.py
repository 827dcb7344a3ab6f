"""Files with secrets of the user: mode 0600, written as a whole, and never followed through a link."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from dlicmd.sdk.errors import TokenFileError
from dlicmd.sdk.messages import debug


def read_private(path: Path, what: str, most: int) -> bytes | None:
    """Return at most `most` bytes of a file, None when there is none. Other users lose access to it. Raises
    TokenFileError when the file cannot be trusted; `what` names it in messages, such as `token file`."""
    _refuse_strange(path, what)
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    try:
        fd = os.open(path, flags)
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise TokenFileError(f"cannot read the {what} {path}: {problem.strerror}") from None
    with open(fd, "rb") as file:
        if hasattr(os, "fchmod") and stat.S_IMODE(os.fstat(fd).st_mode) & 0o077:
            os.fchmod(fd, 0o600)
            debug(f"other users could read {path}; changed its mode to 0600")
        return file.read(most)


def write_private(path: Path, what: str, content: bytes) -> None:
    """Write a file. The write is atomic, and only the owner can read the file. Raises TokenFileError."""
    _refuse_strange(path, what)
    temporary = path.with_name(f"{path.name}.{os.urandom(4).hex()}.tmp")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600)
        try:
            with open(fd, "wb") as file:
                if hasattr(os, "fchmod"):
                    os.fchmod(fd, 0o600)
                file.write(content)
                file.flush()
                os.fsync(fd)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as problem:
        raise TokenFileError(f"cannot write the {what} {path}: {problem.strerror}") from None


def remove_private(path: Path, what: str) -> None:
    """Remove a file if there is one. Raises TokenFileError."""
    try:
        path.unlink(missing_ok=True)
    except OSError as problem:
        raise TokenFileError(f"cannot remove the {what} {path}: {problem.strerror}") from None


def _refuse_strange(path: Path, what: str) -> None:
    """Raise TokenFileError unless `path` is missing or a regular file of this user."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    except OSError as problem:
        raise TokenFileError(f"cannot check the {what} {path}: {problem.strerror}") from None
    if stat.S_ISLNK(found.st_mode):
        raise TokenFileError(f"the {what} {path} is a symbolic link; remove it and log on again")
    if not stat.S_ISREG(found.st_mode):
        raise TokenFileError(f"the {what} {path} is not a regular file; move it away and log on again")
    if hasattr(os, "getuid") and found.st_uid != os.getuid():
        raise TokenFileError(f"the {what} {path} belongs to another user; remove it and log on again")
