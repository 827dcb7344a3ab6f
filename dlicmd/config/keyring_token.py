"""The token of a remote server in the system's keyring, for users who select it (`--keyring`, DLICMD_KEYRING)."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from dlicmd.errors import TokenFileError

SERVICE, ACCOUNT = "dlicmd", "token"


def read() -> str | None:
    """Return the stored token, or None. Raises TokenFileError when no keyring can be used."""
    found: str | None = _tried(lambda keyring: keyring.get_password(SERVICE, ACCOUNT))
    return found


def write(token: str) -> None:
    """Store `token`. Raises TokenFileError."""
    _tried(lambda keyring: keyring.set_password(SERVICE, ACCOUNT, token))


def forget() -> None:
    """Remove the token if there is one. Raises TokenFileError."""
    if read() is not None:
        _tried(lambda keyring: keyring.delete_password(SERVICE, ACCOUNT))


def _tried(work: Callable[[ModuleType], Any]) -> Any:
    cure = "omit --keyring (DLICMD_KEYRING) to store the token in ~/.dlicmd"
    try:
        import keyring
    except ImportError:
        raise TokenFileError(f"the keyring needs a library: pip install 'dlicmd[keyring]'; or {cure}") from None
    try:
        return work(keyring)
    except Exception as problem:  # each keyring library raises its own errors
        why = " ".join(str(problem).split())[:200] or type(problem).__name__
        raise TokenFileError(f"cannot use the keyring of this system ({why}); {cure}") from None
