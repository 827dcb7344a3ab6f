"""Logon with an account of the server's OIDC issuer: with the token of a pipeline, or in a browser."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from dlicmd.contract.argv import CommandLine
from dlicmd.sdk.errors import UsageProblem
from dlicmd.sdk.messages import inert, info

if TYPE_CHECKING:
    from dlicmd.sdk.client import Client

OPTION, FILE, VARIABLE = "--oidc", "--oidc-token-file", "DLICMD_OIDC_TOKEN"
#: Maximum characters of a token.
_LONGEST = 2**16


def is_wanted(line: CommandLine) -> bool:
    """Return whether the command line or the environment asks for this kind of logon."""
    by_variable = bool(os.environ.get(VARIABLE, "").strip()) and line.text("--username") is None
    return line.flag(OPTION) or line.text(FILE) is not None or by_variable


def logon(line: CommandLine, client: Client) -> dict[str, Any]:
    """Log on, and return the server's answer. Raises DlicmdError."""
    token = _given(line)
    if token is None:
        from dlicmd.sdk.oidc import device_token  # needs requests

        token = device_token(client.oidc_issuer(), info)
    return client.logon_oidc(token)


def _given(line: CommandLine) -> str | None:
    """Return the token of the file or of the variable, None without both. Raises UsageProblem."""
    path = line.text(FILE)
    if path is None:
        return os.environ.get(VARIABLE, "").strip() or None
    try:
        with open(path, encoding="ascii") as file:
            token = file.read(_LONGEST + 1).strip()
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or "it contains no token"
        raise UsageProblem(f"{FILE}: cannot read {inert(path)}: {reason}") from None
    if not token or len(token) > _LONGEST:
        raise UsageProblem(f"{FILE}: {inert(path)} contains no token")
    return token
