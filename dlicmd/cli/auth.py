"""The token of a remote server: logon, logoff, and the file that stores the token."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dlicmd.cli.config.private_file import read_private, remove_private, write_private
from dlicmd.contract import wire
from dlicmd.sdk import hints, paths
from dlicmd.sdk.calls import MAX_TOKEN, checked_token
from dlicmd.sdk.errors import Denied, TokenFileError, UsageProblem

if TYPE_CHECKING:
    from dlicmd.cli.config.servers import KnownServer, Servers

MASK = "***"
#: The entry of the token in the keyring of the system, for users who select it (`--keyring`, DLICMD_KEYRING).
SERVICE, ACCOUNT = "dlicmd", "token"
_WHAT = "token file"


def read_token(keyring: bool = False, server: str = "") -> str | None:
    """Return the stored token, or None when there is none. Raises TokenFileError when the file cannot be trusted.

    With `keyring`, this function and those below use the system's keyring instead of the file. The keyring has an entry
    for each `server` of a verb, beside the entry of the long options.
    """
    if keyring:
        token = _from_keyring(server)
        return checked_token(token, "the keyring") if token else None
    path = paths.token_file()
    data = read_private(path, _WHAT, MAX_TOKEN + 1) or b""
    token = data.decode("ascii", "replace").strip()
    return checked_token(token, f"the token file {path}") if token else None


def write_token(token: str, keyring: bool = False, server: str = "") -> None:
    """Store `token`, and nothing else, in the token file. The write is atomic, and only the owner can read the file."""
    if keyring:
        _into_keyring(token, server)
        return
    write_private(paths.token_file(), _WHAT, token.encode("ascii"))


def forget_token(keyring: bool = False, server: str = "") -> None:
    """Remove the token file if there is one."""
    if keyring:
        _out_of_keyring(server)
        return
    remove_private(paths.token_file(), _WHAT)


def token_of(server: KnownServer) -> str | None:
    """Return the token that `login` stored for a server, or None. Raises TokenFileError."""
    return read_token(True, server.name) if server.in_keyring else server.token


def token_in_environment() -> str | None:
    """Return the token in DLICMD_TOKEN, or None when there is none. Raises Denied when it is unusable."""
    named = os.environ.get("DLICMD_TOKEN", "").strip()
    return checked_token(named, "DLICMD_TOKEN") if named else None


def given_token(option: str | None) -> str | None:
    """Return the token in `--jwt-token` or DLICMD_TOKEN, or None. Raises Denied when it is unusable."""
    return token_in_environment() if option is None else checked_token(option.strip(), "--jwt-token")


def token_for(address: str, keyring: bool = False) -> str:
    """Return the stored token for the server at an address: the one that this server issued, or the one in the token
    file unless another known server issued it. Raises Denied when there is none or it is unusable."""
    from dlicmd.cli.config import servers  # only for stored tokens

    found = servers.load()
    own = found.at(address)
    token = token_of(own) if own is not None else None
    if token is not None:
        return checked_token(token, "the stored token of this server")
    token = read_token(keyring)
    if token is None or token in tokens_of(found.without(address)):
        raise Denied(f"Unable to find token from cookies. Please logon first. To log on: {hints.logon()}", 401)
    return token


def tokens_of(found: Servers) -> set[str]:
    """Return the stored tokens of all known servers. Raises TokenFileError."""
    return set(filter(None, map(token_of, found.known.values())))


def credentials(username: str | None, password: str | None) -> tuple[str, str]:
    """Return user name and password: as given, from the environment, or read from standard input.

    On a terminal the password is read without echo. Otherwise each missing value is one line of standard input: first
    the user name, then the password.
    """
    username = username or os.environ.get("DLICMD_USERNAME") or _ask("Username: ")
    if password is None:
        password = os.environ.get("DLICMD_PASSWORD")
    if password is None:
        password = _ask_secret()
    if not username or ":" in username:
        raise UsageProblem("a user name without a colon is required: add --username USER, or set DLICMD_USERNAME")
    if not password:
        raise UsageProblem("a password is required: type it at the prompt, pipe it in, or set DLICMD_PASSWORD")
    return username, password


def may_trust(where: str, fingerprint: str) -> bool:
    """Ask the user on a terminal whether to trust a certificate; return False without a terminal. `fingerprint` is its
    SHA-256 in hexadecimal digits."""
    if not sys.stdin.isatty():
        return False
    print(f"The TLS certificate of {where} (SHA-256 {fingerprint}) cannot be verified.", file=sys.stderr)
    return _ask("Trust this certificate, and send the password? [y/N] ").lower() in ("y", "yes")


def _ask(prompt: str) -> str:
    if sys.stdin.isatty():
        print(prompt, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip()


def _ask_secret() -> str:
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    import getpass  # only for a prompt

    try:
        return getpass.getpass("Password: ")
    except EOFError:
        return ""


def masked(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a logon with its tokens and passwords masked, so that it can be shown."""
    secret = (wire.ACCESS_TOKEN.lower(), "token", "refreshtoken", "idtoken", "password")
    return {key: MASK if key.lower().replace("_", "") in secret else value for key, value in answer.items()}


def _account(server: str) -> str:
    """Return the name of the keyring's entry for a server of a verb; "" is the entry of the long options."""
    return f"{ACCOUNT} {server}" if server else ACCOUNT


def _from_keyring(server: str) -> str | None:
    """Return the stored token, or None. Raises TokenFileError when no keyring can be used."""
    found: str | None = _with_keyring(lambda keyring: keyring.get_password(SERVICE, _account(server)))
    return found


def _into_keyring(token: str, server: str) -> None:
    """Store `token`. Raises TokenFileError."""
    _with_keyring(lambda keyring: keyring.set_password(SERVICE, _account(server), token))


def _out_of_keyring(server: str) -> None:
    """Remove the token if there is one. Raises TokenFileError."""
    if _from_keyring(server) is not None:
        _with_keyring(lambda keyring: keyring.delete_password(SERVICE, _account(server)))


def _with_keyring(work: Callable[[ModuleType], Any]) -> Any:
    cure = "omit --keyring (DLICMD_KEYRING) to store the token in ~/.dlicmd"
    try:
        import keyring  # an optional library
    except ImportError:
        raise TokenFileError(f"the keyring needs a library: pip install 'dlicmd[keyring]'; or {cure}") from None
    try:
        return work(keyring)
    except Exception as problem:  # each keyring library raises its own errors
        why = " ".join(str(problem).split())[:200] or type(problem).__name__
        raise TokenFileError(f"cannot use the keyring of this system ({why}); {cure}") from None
