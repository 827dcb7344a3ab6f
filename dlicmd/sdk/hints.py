"""The remedies in messages: options and command lines for users of `dlicmd`, parameters and methods for programs.

The command lines name the same server as the user's command line.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dlicmd.contract.argv import CommandLine
from dlicmd.sdk.messages import program

_CONNECTION = ("--rest-host", "--rest-port", "--ca-cert", "--trust-fingerprint", "--insecure", "--http", "--keyring")
#: Command about a search → the verb about jobs that also takes the name of a search.
_OF_SEARCHES = {"--hpo-get": "get", "--hpo-plot": "plot", "--hpo-stop": "stop", "--hpo-delete": "rm",
                "--hpo-get-all": "search"}
#: The words of the command line if the first of them is a verb: remedies then name verbs in place of long options.
_typed: Sequence[str] = ()
#: Words that name the server on the user's command line; None in a program that calls the client.
_connection: list[str] | None = None

#: The program for models that serve requests.
DLIM = "dlim"
#: Text about the client file that servers hand out.
REMOTE_ALONE = "this dlicmd is only a client for remote servers; pip install dlicmd installs the local backend"


@contextmanager
def of_command_line() -> Iterator[None]:
    """Write all messages in this context for a user of `dlicmd`."""
    global _connection, _typed
    before = _connection, _typed
    _connection, _typed = [], ()
    try:
        yield
    finally:
        _connection, _typed = before


def remember(line: CommandLine) -> None:
    """Name the server of `line` in all later hints of a command line, and use verbs if it does. Secrets are not
    repeated."""
    global _connection, _typed
    _connection, _typed = [], line.typed
    for name in _CONNECTION:
        value = line.values.get(name)
        if value is not None:
            _connection.extend([name] if value is True else [name, str(value)])


def either(command_line: str, program: str) -> str:
    """Return the text for a user of `dlicmd`, or the one for a program that calls the client."""
    return program if _connection is None else command_line


def option(name: str) -> str:
    """Return the name of an option of a submission, such as `--model-dir`, as the user writes it."""
    return either(name, name.removeprefix("--"))


def job() -> str:
    """Return the word for a job: `job` for a user of verbs, else that of the contract."""
    return "job" if _typed else "exec"


def as_typed(text: str) -> str:
    """Return a message with the options of submissions as the user spelled them in a verb's command line."""
    if not _typed:
        return text
    from dlicmd.contract.corrected import with_typed_options  # only after a refusal

    return with_typed_options(_typed, text)


def command(*words: str) -> str:
    """Return `dlicmd` with these words and the server, quoted for a shell. The first word is a verb, or a long option
    with the verb that does the same."""
    first, *rest = words
    if _typed and first in _OF_SEARCHES:
        first = _OF_SEARCHES[first]
    elif _typed:
        from dlicmd.contract.verbs import VERBS  # only for the hints of a verb

        first = next((verb.name for verb in VERBS if verb.command == first), first)
    return shlex.join(["dlicmd", first, *rest, *(_connection or ())])


def replaced(wrong: str, right: str) -> str:
    """Return the end of a question what is meant: the user's command line with a word in place of a wrong one, or that
    word."""
    if not _typed:
        return f" {right}?"
    from dlicmd.contract.corrected import with_word  # only for a wrong word

    return f": {with_word(_typed, wrong, right)}"


def as_command(first: str) -> str | None:
    """Return the user's command line with an operand as the first word of a command after `--`, or None without a
    verb."""
    if not _typed:
        return None
    from dlicmd.contract.corrected import with_command_after_dashes  # only for a wrong word

    return with_command_after_dashes(_typed, first)


def repeated(*option: str) -> str | None:
    """Return the user's command line with one more option, its words, or None without a verb."""
    if not _typed:
        return None
    from dlicmd.contract.corrected import with_option_added  # only after a refusal

    return with_option_added(_typed, *option)


def all_execs() -> str:
    """Return the command or the method that lists the user's jobs."""
    return either(command("--exec-get-all"), "Client.jobs()")


def logon() -> str:
    """Return the command or the method that logs on to the server."""
    if _connection is not None and program() == DLIM:
        return "dlim config -t -u USER"
    missing = "dlicmd login" if _typed else "dlicmd --logon --rest-host HOST"
    return either(command("--logon") if _connection else missing, "Client.logon(username, password)")


def has_verb() -> bool:
    """Return whether the user typed a verb."""
    return bool(_typed)


def http() -> str:
    """Return the option for plain http."""
    return either("--http", "http=True")


def authority() -> str:
    """Return the option for the authority that signed the certificate of the server."""
    return either("--ca-cert FILE", "ca_cert=FILE")


def address() -> str:
    """Return the remedy when no server answers."""
    if _connection is not None and program() == DLIM:
        return "check that a server is running there, and check --rest-server, or dlim config -c URL"
    if _typed and not _connection:  # the server is the current one
        return f"check that it runs, or use the local backend: {command('server', 'use', 'local')}"
    return "check that a server is running there, and check " + either("--rest-host and --rest-port", "host and port")


def a_server() -> str:
    """Return the remedy when the local backend cannot run here."""
    return "name a server with " + either("--rest-host HOST", "Client(HOST)")


def another_server() -> str:
    """Return the remedy when the local backend speaks TLS in a way that the client cannot use."""
    return "name the server with " + either("--rest-host HOST --rest-port PORT --ca-cert FILE",
                                            "Client(HOST, PORT, ca_cert=FILE)")


def another_folder() -> str:
    """Return the remedy when a result cannot be stored in a folder."""
    return "choose " + either("--to DIR", "another folder")


def hidden() -> str:
    """Return the remedy when a result has hidden files."""
    return (f"choose a new folder with {either('--to DIR', 'folder')}, name each of them, or store them all with "
            f"{either('--force', 'force=True')}")


def overwriting() -> str:
    """Return the remedy when the file of a result exists already."""
    return f"overwrite it with {either('--force', 'force=True')}, or {another_folder()}"
