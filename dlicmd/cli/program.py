"""argv → one command → exit code, and the message about each error.

Modules that only some commands need are imported where they are used. So a plain `--exec-get` starts in the time that
Python and its HTTP client take (benchmarks/startup.py). For the same reason, click only lays out the help.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from dlicmd.cli import console, manner
from dlicmd.cli.config import profiles
from dlicmd.cli.manner import Manner
from dlicmd.cli.outermost import explained_any, guarded, prepare_streams
from dlicmd.cli.render import Output, emit
from dlicmd.contract.argv import ArgvError, CommandLine, parse_argv
from dlicmd.contract.exits import Exit
from dlicmd.contract.options import COMMAND_NAMES, FILE
from dlicmd.sdk import hints, messages
from dlicmd.sdk.errors import DlicmdError, SubmissionRefused, UsageProblem

#: The variable with which a shell's completion script asks for candidates, as in dlicmd.cli.commands.completion, which
#: imports click.
COMPLETION = "_DLICMD_COMPLETE"


def main(argv: Sequence[str] | None = None) -> int:
    """Run dlicmd with the given words (default: those of the process), and return the exit code."""
    messages.set_program("dlicmd")
    prepare_streams()
    if argv is None and COMPLETION in os.environ:
        from dlicmd.cli.commands.completion import answer  # needs click

        answer()
        return Exit.DONE
    words = list(sys.argv[1:] if argv is None else argv)
    with hints.of_command_line():
        return guarded(lambda: _program(words), lambda problem: _explained(problem, words))


def _program(words: list[str]) -> int:
    """Run the command line and return the exit code. Errors are raised, unless the command is one of the original
    client and was called as such."""
    called = manner.of_this_process()
    console.set_errors(shown=True)
    console.set_prefix(shown=True)
    if called is Manner.ORIGINAL:
        return _as_original(words)
    console.set_json_errors(_asks_for_json(words))  # for errors of the command line itself
    _check_encoding(words)
    return _command(words, _parse_either(words), called)


def _command(words: list[str], line: CommandLine, called: Manner) -> int:
    """Run a command and return its exit code."""
    _prepare(line)
    if line.command == "--help":
        from dlicmd.cli.commands.help import help_text, short_usage  # needs click

        if words == ["help"]:
            emit(short_usage())
            return Exit.DONE
        if words:
            emit(help_text(line.operand))
            return Exit.DONE
        console.aside(short_usage())
        return Exit.USAGE
    # Only long options print the recorded layouts. Whether standard output is a terminal, verbs print ours.
    output = Output.parse(line.text("--output"), called if line.verb is None else Manner.TERMINAL)
    console.set_json_errors(output.form in ("json", "jsonl"))
    from dlicmd.cli.commands.table import run  # needs the transport, which the help does not
    from dlicmd.cli.session import Session

    if line.verb is not None:
        from dlicmd.cli.config.servers import use_current  # only for verbs

        use_current(line)
    with Session(words, line, output) as session:
        session.renewal = _renewed if line.verb is not None else None
        return run(session)


def _renewed(session: Any, denied: str) -> str | None:
    from dlicmd.cli.renewal import renewed  # only for an expired logon

    return renewed(session, denied)


def _as_original(words: list[str]) -> int:
    """Run the command line as the original client does, and return the exit code. Errors of commands that the original
    client lacks are raised."""
    from dlicmd.cli import original  # only for this manner
    from dlicmd.cli.session import Session
    from dlicmd.contract.original import spelled_out

    console.set_json_errors(False)
    try:
        words = spelled_out(words)
        _check_encoding(words)
        line = _parse(words)
    except (DlicmdError, ArgvError) as problem:
        return original.report(problem, _explained(problem, words)[2])
    if original.is_ours(line):
        return _command(words, line, manner.of_the_output())
    _prepare(line)
    if line.command == "--help":
        from dlicmd.cli.commands.help import help_as_original  # needs click

        emit(help_as_original())
        return Exit.DONE if words else Exit.FAILED
    try:
        with Session(words, line, Output.parse(line.text("--output"), Manner.ORIGINAL)) as session:
            return original.run_as_original(session)
    except BrokenPipeError:
        raise
    except (KeyboardInterrupt, DlicmdError) as problem:
        return original.report(problem, _explained(problem, words)[2])


def _prepare(line: CommandLine) -> None:
    """Let later messages follow the options of the command line."""
    messages.set_level(line.text("--debug-level") or "info")
    hints.remember(line)


def _asks_for_json(words: list[str]) -> bool:
    """Return whether the words select JSON as output, even if they are not a valid command line."""
    own = words[: words.index("--")] if "--" in words else words
    spelled = {f"{option}{value}" for option in ("-o", "--output=", "-o ", "--output ") for value in ("json", "jsonl")}
    return not spelled.isdisjoint([*own, *map(" ".join, pairwise(own))])


def _parse(words: list[str]) -> CommandLine:
    """Parse the words in the grammar of the long options. No words, `-h` as the first word, and `--help` before any
    `--` ask for the help, about the command beside it. Raises ArgvError, UsageProblem."""
    own = words[: words.index("--")] if "--" in words else words
    if not words or "--help" in own or own[:1] == ["-h"]:
        return CommandLine("--help", next((word for word in own if word in COMMAND_NAMES - {"--help"}), None))
    if any(word.partition("=")[0] in (FILE.name, *FILE.aliases) for word in own):
        from dlicmd.cli.job_file import expand  # needs YAML

        words = expand(words)
    return profiles.applied(words, parse_argv(words))


def _parse_either(words: list[str]) -> CommandLine:
    """Parse the words in the grammar of the verbs if the first word makes it one, else in that of the long options.
    Raises ArgvError, UsageProblem."""
    if not words or words[0].startswith("-"):
        return _parse(words)
    from dlicmd.contract.verb_argv import is_verb_line, parse_verb  # only for verbs

    return profiles.applied(words, parse_verb(words)) if is_verb_line(words) else _parse(words)


def _check_encoding(words: list[str]) -> None:
    """Raise ArgvError for a word that is not UTF-8."""
    for word in words:
        if not word.isascii() and word.encode("utf-8", "replace").decode() != word:
            raise ArgvError(f"{word.encode('utf-8', 'backslashreplace').decode()} is not valid UTF-8")


def _explained(problem: BaseException, words: Sequence[str]) -> tuple[str, str, Exit]:
    """Return the message for the user about an exception, its code (contract.error_codes), and the exit code. `words`:
    the command line."""
    if isinstance(problem, ArgvError | UsageProblem):
        text = hints.as_typed(str(problem))
        if ": dlicmd " in text:  # it says what to type
            return text, UsageProblem.code, Exit.USAGE
        ends = text.endswith((".", "?"))
        return f"{text}{'' if ends else '.'} Try '{_help_for(words)}'.", UsageProblem.code, Exit.USAGE
    if isinstance(problem, SubmissionRefused):
        return hints.as_typed(str(problem)), problem.code, problem.exit_code
    return explained_any(problem)


def _help_for(words: Sequence[str]) -> str:
    """Return the command that shows the help for a wrong command line: that of its verb or long command, if it has
    one."""
    from dlicmd.contract.verb_argv import HELP_VERB, is_verb_line  # only after a mistake
    from dlicmd.contract.verbs import BY_VERB

    if not is_verb_line(words):
        own = words[: words.index("--")] if "--" in words else words
        names = [word.partition("=")[0] for word in own]
        named = next((name for name in names if name in COMMAND_NAMES - {"--version"}), "--help")
        return " ".join(dict.fromkeys(("dlicmd", named, "--help")))
    return f"dlicmd {words[0]} --help" if words[0] in BY_VERB else f"dlicmd {HELP_VERB}"
