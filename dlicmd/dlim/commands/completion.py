"""Completion of command lines of dlim in bash, zsh and fish, with candidates from the table of commands."""

from __future__ import annotations

from itertools import pairwise

from click.shell_completion import CompletionItem

from dlicmd.cli.commands.completion import in_a_moment, print_candidates, script
from dlicmd.cli.config import profiles
from dlicmd.cli.config.servers import use_current
from dlicmd.cli.render import Output, emit
from dlicmd.cli.session import Session
from dlicmd.contract.argv import ArgvError, CommandLine
from dlicmd.contract.dlim_commands import (
    BY_COMMAND,
    COMMANDS,
    COMPLETION,
    GROUPS,
    OF_MODELS,
    DlimCommand,
    option_of,
    options_of,
)
from dlicmd.contract.exits import Exit
from dlicmd.contract.options import Form
from dlicmd.dlim.place import take

_SHELLS = ("bash", "zsh", "fish")
_FILES, _FOLDERS = [CompletionItem("", type="file")], [CompletionItem("", type="dir")]


def show_script(session: Session) -> int:
    """Print the script that the shell of the command line reads."""
    if session.operand not in _SHELLS:
        raise ArgvError(f"'{session.operand}' is not one of {', '.join(_SHELLS)}")
    emit(script(session.operand, "dlim", COMPLETION))
    return Exit.DONE


def answer() -> None:
    """Print the candidates that the script of a shell asks for."""
    print_candidates(candidates, "dlim", COMPLETION)


def candidates(words: list[str], begun: str) -> list[CompletionItem]:
    """Return the candidates for `begun` after `words`."""
    plain = [word for word in words if not word.startswith("-")]
    length = 2 if plain[:1] and plain[0] in GROUPS else 1
    command = BY_COMMAND.get(" ".join(plain[:length]))
    option = option_of(command, words[-1]) if words else None
    if option is not None and option.kind is not Form.FLAG and not begun.startswith("--"):
        if option.name == "--output":
            found = [CompletionItem(choice) for choice in ("json", "yaml", "table")]
        else:
            found = {"FILE": _FILES, "DIR": _FOLDERS}.get(option.metavar) or [
                CompletionItem(choice) for choice in option.choices]
    elif begun.startswith("-"):
        found = [CompletionItem(one.name, help=one.help) for one in options_of(command) if not one.hidden]
    elif command is None:
        found = _next_words(plain)
    else:
        found = _operands(command, words, len(plain) - length)
    return [item for item in found if item.type != "plain" or item.value.startswith(begun)]


def _next_words(plain: list[str]) -> list[CompletionItem]:
    """Return the words that may follow in the name of a command."""
    begin = "".join(f"{word} " for word in plain)
    names = [one for one in COMMANDS if one.name.startswith(begin)]
    found = {one.name[len(begin):].partition(" ")[0]: one.help for one in names}
    return [CompletionItem(word, help="" if word in GROUPS and not plain else text) for word, text in found.items()]


def _operands(command: DlimCommand, words: list[str], place: int) -> list[CompletionItem]:
    if command.operands.startswith("DIR"):
        return _FOLDERS
    if command.name == "completion":
        return [CompletionItem(shell) for shell in _SHELLS]
    if place == 0 and command.name in OF_MODELS:
        return [CompletionItem(name) for name in _names(words)]
    return _FILES if command.name == "invoke" else []


def _names(words: list[str]) -> list[str]:
    """Return the names of the models, if the server answers in time. The local backend is never started."""
    def ask() -> list[str]:
        line = CommandLine("model list")
        line.values["--dry-run"] = True  # keeps the client from starting a backend
        for name, value in pairwise(words):
            if name == "--rest-server":
                take(line, value, name)
            elif name == "--profile":
                line.values[name] = value
        profiles.fill(line)
        use_current(line)
        with Session([], line, Output.parse(None)) as session:
            return [one.name for one in session.client.impatient().models()]

    return in_a_moment(ask)
