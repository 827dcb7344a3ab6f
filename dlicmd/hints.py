"""The command lines that messages tell their readers to type: they name the same server as this one did."""

from __future__ import annotations

import shlex

from dlicmd.contract.argv import CommandLine

_CONNECTION = ("--rest-host", "--rest-port", "--ca-cert", "--insecure", "--http", "--keyring")
_connection: list[str] = []
#: What to do when nobody answers.
ADDRESS = "see that a server runs there, and that --rest-host and --rest-port are right"

#: What is so of the file that servers hand out.
REMOTE_ALONE = "this dlicmd is a client for remote servers alone; pip install dlicmd brings the local backend"


def remember(line: CommandLine) -> None:
    """From now on name the server that `line` names. Nothing secret is repeated."""
    _connection[:] = []
    for name in _CONNECTION:
        value = line.values.get(name)
        if value is not None:
            _connection.extend([name] if value is True else [name, str(value)])


def command(*words: str) -> str:
    """`dlicmd` with these words and the server, as a shell takes it."""
    return shlex.join(["dlicmd", *words, *_connection])


def logon() -> str:
    """How to log on to the server."""
    return command("--logon") if _connection else "dlicmd --logon --rest-host HOST"
