"""Completion of command lines in bash, zsh and fish: click's scripts, with candidates from the option table.

The script of a shell calls dlicmd with a variable and the words so far. An error only means fewer candidates: dlicmd
prints no message and starts no backend. A server has a short time to return ids.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from click import Command
from click.shell_completion import BashComplete, CompletionItem, FishComplete, ShellComplete, ZshComplete

from dlicmd.cli.commands.execs import AUTO
from dlicmd.cli.config import profiles
from dlicmd.cli.config.servers import LOCAL, load, use_current
from dlicmd.cli.render import Output, emit
from dlicmd.cli.session import Session
from dlicmd.contract import wire
from dlicmd.contract.argv import SUBMITTING, parse_argv
from dlicmd.contract.exits import Exit
from dlicmd.contract.options import (
    COMMAND_NAMES,
    EXEC_COMMANDS,
    LAST,
    Form,
    Option,
    Section,
    help_sections,
    option_named,
)
from dlicmd.contract.states import NAMED
from dlicmd.contract.verb_argv import HELP_VERB
from dlicmd.contract.verbs import BY_VERB, STATE, VERBS, Verb, options_of, verb_option
from dlicmd.sdk.client import Client
from dlicmd.sdk.records import Record

#: The variable with which a shell's completion script asks for candidates.
COMPLETION = "_DLICMD_COMPLETE"
#: Seconds that a server has to return ids.
MOMENT = 2.0
_SHELLS: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}
#: Text that needs no quoting on a command line: a server must not put anything else there.
_HARMLESS = re.compile(r"[A-Za-z0-9_.-]{1,200}")
_FILES, _FOLDERS = [CompletionItem("", type="file")], [CompletionItem("", type="dir")]
_FORMATS = ("table", "json", "jsonl", "yaml", "custom-columns=")


def script(shell: str, program: str = "dlicmd", variable: str = COMPLETION) -> str:
    """Return the script that a shell reads to complete a program."""
    return ShellComplete.source(_completer(shell, program, variable)).strip()


def show_script(session: Session) -> int:
    """Print the script that the shell of the command line reads."""
    emit(script(session.operand))
    return Exit.DONE


def answer() -> None:
    """Print the candidates that the script of a shell asks for."""
    print_candidates(candidates, "dlicmd", COMPLETION)


def print_candidates(
    find: Callable[[list[str], str], list[CompletionItem]], program: str, variable: str,
) -> None:
    """Print what `find` returns for the words so far and the word that has begun. An error only means fewer
    candidates."""
    sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    try:
        completer = _completer(os.environ[variable].partition("_")[0], program, variable)
        words, begun = completer.get_completion_args()
        print("\n".join(completer.format_completion(item) for item in find(words, begun)), flush=True)
    except Exception:
        return


def _completer(shell: str, program: str, variable: str) -> ShellComplete:
    return _SHELLS[shell](Command(program), {}, program, variable)


def candidates(words: list[str], begun: str) -> list[CompletionItem]:
    """Return the candidates for `begun` after `words`."""
    if "--" in words:
        return _FILES
    if not (words or [begun])[0].startswith("-"):
        found = _of_verb(words, begun)
        return [item for item in found if item.type != "plain" or item.value.startswith(begun)]
    command = next((word for word in words if word in COMMAND_NAMES), None)
    option = option_named(words[-1], command) if words else None
    takes_value = option is not None and option.kind is not Form.FLAG
    if option is not None and (takes_value or option.name in EXEC_COMMANDS) and not begun.startswith("-"):
        found = _values(option, words)
    elif begun.startswith("-") or command is None:
        found = [CompletionItem(each.name, help=each.help) for each in _options(command)]
    elif command in SUBMITTING:
        return _FILES
    else:
        found = _ids(words) if _takes_ids(command) else []
    return [item for item in found if item.type != "plain" or item.value.startswith(begun)]


def _of_verb(words: list[str], begun: str) -> list[CompletionItem]:
    """Return the candidates in a command line that begins with a verb, or that is empty."""
    if words[:1] in ([], [HELP_VERB]):
        return [CompletionItem(verb.name, help=verb.help) for verb in VERBS]
    verb = BY_VERB.get(words[0])
    if verb is None:
        return []
    option = verb_option(verb, words[-1])
    if begun.startswith("-"):
        shown = (one for one in options_of(verb) if not one.hidden)
        return [CompletionItem(one.name, help=one.help) for one in shown]
    if option is not None and option.kind is not Form.FLAG:
        if option.name == STATE:
            return [CompletionItem(name) for name in NAMED]
        return _FILES if option.metavar == "PATH" else _values(option, words)
    return _operands(verb, words)


def _operands(verb: Verb, words: list[str]) -> list[CompletionItem]:
    """Return the candidates for the next operand of a verb. Values of options that precede it count as operands, which
    only means fewer candidates."""
    place = sum(not word.startswith("-") for word in words[1:])
    if place < verb.ids:
        return _ids(words)
    if verb.name == "server":
        names = [LOCAL, *load().known]
        return [CompletionItem(name) for name in (("ls", "use") if place == 0 else names if words[-1] == "use" else ())]
    if verb.name == "resize":
        return [CompletionItem(AUTO)]
    return _FILES if verb.name in ("run", "search", "data") else []


def _options(command: str | None) -> list[Option]:
    """Return the options that apply to `command`; without a command, the commands and the general options."""
    submits = command is None or command in SUBMITTING
    own = {Section.COMMAND: command is None, Section.DEPLOYMENT: command == "--exec-deploy",
           **dict.fromkeys((Section.SUBMIT, Section.RESOURCES, Section.SCHEDULING), submits)}
    return [option for group, members in help_sections(hidden=command == "--exec-deploy").items()
            if own.get(group, True) for option in members]


def _values(option: Option, words: list[str]) -> list[CompletionItem]:
    if option.choices or option.name == "--output":
        return [CompletionItem(choice) for choice in option.choices or _FORMATS]
    if option.name == "--exec-start":
        return [CompletionItem(name) for name in _asked(words, lambda client: client.frameworks(), "name")]
    if _takes_ids(option.name):
        return _ids(words)
    return {"FILE": _FILES, "DIR": _FOLDERS}.get(option.metavar, [])


def _takes_ids(command: str) -> bool:
    named = command in EXEC_COMMANDS or command in ("--app-get", "--app-wait", "--app-stop")
    return named or (command.startswith("--app-") and command.endswith("logs"))


def _ids(words: list[str]) -> list[CompletionItem]:
    """Return the ids of the user's execs, the newest first. For a command about an exec, `last` comes before them."""
    last = [LAST] if words and (words[0] in BY_VERB or any(word in EXEC_COMMANDS for word in words)) else []
    return [CompletionItem(name) for name in (*last, *reversed(_asked(words, lambda client: client.execs(), wire.ID)))]


def _asked(words: list[str], call: Callable[[Client], Sequence[Record]], key: str) -> list[str]:
    """Return the value of `key` in each object that `call` returns, if the server answers in time. The server is the
    one that `words` name. The local backend is never started."""
    def ask() -> list[str]:
        # `--dry-run` keeps the client from starting a backend.
        own = ["--exec-get-all", "--dry-run", *_connection(words)]
        line = profiles.applied(own, parse_argv(own))
        if words and words[0] in BY_VERB:
            line.verb = words[0]
            use_current(line)
        with Session(own, line, Output.parse(None)) as session:
            return [str(item.get(key)) for item in call(session.client.impatient())]

    return in_a_moment(ask)


def in_a_moment(ask: Callable[[], list[str]]) -> list[str]:
    """Return the harmless ones of the names that `ask` returns, if it returns in time and without an error."""
    found: list[str] = []

    def work() -> None:
        with suppress(Exception):
            found.extend(ask())

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(MOMENT)
    return [name for name in list(found) if _HARMLESS.fullmatch(name)]


def _connection(words: list[str]) -> list[str]:
    """Return the words that select the server."""
    found = []
    for at, word in enumerate(words):
        option = option_named(word.partition("=")[0], None)
        if option is not None and option.group is Section.CONNECTION:
            found += words[at : at + (1 if option.kind is Form.FLAG or "=" in word else 2)]
    return found
