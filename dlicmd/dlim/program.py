"""argv → one command of dlim → exit code, and the message about each error."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any, cast

from dlicmd import __version__
from dlicmd.cli import console
from dlicmd.cli.config import profiles
from dlicmd.cli.outermost import explained_any, guarded, prepare_streams
from dlicmd.cli.render import Output, emit
from dlicmd.contract import dlim
from dlicmd.contract.argv import ArgvError, CommandLine
from dlicmd.contract.dlim_argv import VERSION, parse_dlim
from dlicmd.contract.dlim_commands import BY_COMMAND, COMPLETION
from dlicmd.contract.exits import Exit
from dlicmd.sdk import hints, messages
from dlicmd.sdk.errors import NoSuchModel, UsageProblem

#: Command → module below `dlicmd.dlim.commands`, and function.
_FUNCTIONS = {
    "config": ("config", "config"),
    "model list": ("models", "list_all"), "model start": ("models", "start"), "model stop": ("models", "stop"),
    "model undeploy": ("models", "undeploy"), "model readme": ("models", "readme"), "why": ("models", "why"),
    "model viewprofile": ("profile", "view"), "model updateprofile": ("profile", "update"),
    "model deploy": ("deploy", "deploy"), "run": ("run", "run"),
    "model view": ("view", "view"), "top": ("top", "top"),
    "runtime list": ("runtimes", "list_all"), "runtime view": ("runtimes", "view"),
    "runtime create": ("runtimes", "create"), "runtime update": ("runtimes", "update"),
    "runtime delete": ("runtimes", "delete"),
    "invoke": ("requests", "invoke"), "logs": ("logs", "logs"), "debug": ("debug", "debug"),
    "model traffic": ("revisions", "traffic"), "model promote": ("revisions", "promote"),
    "model rollback": ("revisions", "rollback"), "model share": ("revisions", "share"),
    "model save": ("saved", "save"), "model saved": ("saved", "list_all"), "model unsave": ("saved", "unsave"),
    "completion": ("completion", "show_script"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run dlim with the given words (default: those of the process), and return the exit code."""
    messages.set_program(hints.DLIM)
    prepare_streams()
    if argv is None and COMPLETION in os.environ:
        from dlicmd.dlim.commands.completion import answer  # needs click

        answer()
        return Exit.DONE
    words = list(sys.argv[1:] if argv is None else argv)
    line = CommandLine()
    with hints.of_command_line():
        return guarded(lambda: _program(words, line), lambda problem: _explained(problem, line))


def _program(words: list[str], line: CommandLine) -> int:
    """Run the command line and return the exit code. `line` becomes the parsed command line."""
    console.set_errors(shown=True)
    console.set_prefix(shown=True)
    console.set_json_errors(_asks_for_json(words))  # for errors of the command line itself
    vars(line).update(vars(parse_dlim(words)))
    if line.command == VERSION:
        emit(f"dlim {__version__}")
        return Exit.DONE
    if line.command == "--help":
        from dlicmd.dlim.help import help_text  # needs click

        emit(help_text(line.operand)) if words else console.aside(help_text(None))
        return Exit.DONE if words else Exit.USAGE
    from dlicmd.cli.session import Session  # needs the transport, which the help does not

    _choose_server(line)
    command = BY_COMMAND[line.command or ""]
    messages.set_level(line.text("--debug-level") or ("error" if command.recorded else "info"))
    hints.remember(line)
    output = Output.parse(line.text("--output"))
    console.set_json_errors(output.form in ("json", "jsonl"))
    with Session(words, line, output) as session:
        session.renewal = _renewed
        return function_of(command.name)(session)


def _choose_server(line: CommandLine) -> None:
    """Give a command line its server: that of its own options, of its profile, or the current one. Raises UsageProblem,
    ArgvError, TokenFileError."""
    from dlicmd.cli.config.servers import use_current
    from dlicmd.dlim.place import use_server

    use_server(line)
    profiles.fill(line)
    use_current(line)


def _renewed(session: Any, denied: str) -> str | None:
    from dlicmd.cli.renewal import renewed  # only for an expired logon

    return renewed(session, denied)


def function_of(command: str) -> Callable[[Any], int]:
    """Return the function of a command."""
    module, function = _FUNCTIONS[command]
    return cast("Callable[[Any], int]", getattr(import_module(f"dlicmd.dlim.commands.{module}"), function))


def _asks_for_json(words: Sequence[str]) -> bool:
    """Return whether the words select JSON as output, even if they are not a valid command line."""
    spelled = {"-ojson", "--output=json", "-o=json", "-ojsonl", "--output=jsonl", "-o=jsonl"}
    pairs = pairwise(words)
    return not spelled.isdisjoint(words) or any(
        first in ("-o", "--output") and second in ("json", "jsonl") for first, second in pairs)


def _explained(problem: BaseException, line: CommandLine) -> tuple[str, str, Exit]:
    """Return the message for the user about an exception, its code, and the exit code."""
    command = BY_COMMAND.get(line.command or "")
    if isinstance(problem, ArgvError | UsageProblem):
        text = str(problem)
        if ": dlim " in text:  # it says what to type
            return text, UsageProblem.code, Exit.USAGE
        ends = text.endswith((".", "?"))
        asked = f"dlim {command.name} --help" if command else "dlim --help"
        return f"{text}{'' if ends else '.'} Try '{asked}'.", UsageProblem.code, Exit.USAGE
    if isinstance(problem, NoSuchModel) and command is not None and command.recorded:
        console.set_prefix(shown=False)  # automation compares the whole line
        code = Exit.FAILED if command.name == "model undeploy" else Exit.NO_SUCH_ID
        return dlim.missing(problem.name), problem.code, code
    return explained_any(problem)
