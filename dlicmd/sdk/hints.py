"""The command lines in messages: they name the same server as the user's command line."""

from __future__ import annotations

import shlex

from dlicmd.contract.argv import CommandLine

_CONNECTION = ("--rest-host", "--rest-port", "--ca-cert", "--insecure", "--http", "--keyring")
_connection: list[str] = []
#: Remedy when no server answers.
ADDRESS = "check that a server is running there, and check --rest-host and --rest-port"

#: Text about the client file that servers hand out.
REMOTE_ALONE = "this dlicmd is only a client for remote servers; pip install dlicmd installs the local backend"


def remember(line: CommandLine) -> None:
    """Name the server of `line` in all later hints. Secrets are not repeated."""
    _connection[:] = []
    for name in _CONNECTION:
        value = line.values.get(name)
        if value is not None:
            _connection.extend([name] if value is True else [name, str(value)])


def command(*words: str) -> str:
    """Return `dlicmd` with these words and the server, quoted for a shell."""
    return shlex.join(["dlicmd", *words, *_connection])


def logon() -> str:
    """Return the command that logs on to the server."""
    return command("--logon") if _connection else "dlicmd --logon --rest-host HOST"
