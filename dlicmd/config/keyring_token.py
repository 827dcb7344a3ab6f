"""The token of a remote server in the keyring of the system, for who asks for it (`--keyring`, DLICMD_KEYRING)."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from dlicmd.errors import TokenFileError

SERVICE, ACCOUNT = "dlicmd", "token"


def read() -> str | None:
    """The kept token, or None. Raises TokenFileError when there is no keyring that can be used."""
    found: str | None = _tried(lambda keyring: keyring.get_password(SERVICE, ACCOUNT))
    return found


def write(token: str) -> None:
    """Keep `token`. Raises TokenFileError."""
    _tried(lambda keyring: keyring.set_password(SERVICE, ACCOUNT, token))


def forget() -> None:
    """Remove the token if there is one. Raises TokenFileError."""
    if read() is not None:
        _tried(lambda keyring: keyring.delete_password(SERVICE, ACCOUNT))


def _tried(work: Callable[[ModuleType], Any]) -> Any:
    cure = "leave --keyring (DLICMD_KEYRING) out to keep the token in ~/.dlicmd"
    try:
        import keyring
    except ImportError:
        raise TokenFileError(f"the keyring needs a library: pip install 'dlicmd[keyring]'; or {cure}") from None
    try:
        return work(keyring)
    except Exception as problem:  # each of the keyrings of this world raises what it likes
        why = " ".join(str(problem).split())[:200] or type(problem).__name__
        raise TokenFileError(f"the keyring of this system cannot be used ({why}); {cure}") from None
