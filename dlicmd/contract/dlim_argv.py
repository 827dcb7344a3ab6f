"""The grammar of a command line of `dlim`: options and operands in any order, the words of the command first.

The result is a `CommandLine` with the options of dlicmd under their canonical names, so that sessions, profiles and
stored servers are the same.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from dlicmd.contract.argv import ArgvError, CommandLine, Given, convert, typed_option
from dlicmd.contract.dlim_commands import (
    BY_COMMAND,
    COMMANDS,
    GROUPS,
    HELP,
    SECOND,
    SECOND_OF_RUNTIMES,
    SYNONYMS,
    DlimCommand,
    option_of,
    options_of,
)
from dlicmd.contract.options import Form, Option

HELP_COMMAND, OPTIONS_TOPIC = "help", "options"
VERSION = "--version"
#: Options whose values no message repeats.
_SECRETS = ("--jwt-token", "--password", "-x", "--apikey", "-k")


def parse_dlim(words: Sequence[str]) -> CommandLine:
    """Parse the words of a command line. `command` of the result is the name of the command, `--help` (its operand is
    the topic) or `--version`. Raises ArgvError."""
    if not words:
        return CommandLine("--help")
    own = list(words[:words.index("--")] if "--" in words else words)
    if VERSION in own:
        return CommandLine(VERSION)
    if own[:1] == [HELP_COMMAND] or not {HELP.name, *HELP.aliases}.isdisjoint(own):
        return _help_line([word for word in own if not word.startswith("-") and word != HELP_COMMAND])
    line = CommandLine()
    line.typed = tuple(words)
    path: list[str] = []
    position = 0
    while position < len(own):
        position += _take(line, path, _expanded(own, path, position), position)
    if "--" in words:
        line.operands += words[list(words).index("--") + 1:]
    command = _command(path, words)
    line.command = command.name
    _check(line, command)
    return line


def _help_line(path: list[str]) -> CommandLine:
    if path[:1] == [OPTIONS_TOPIC]:
        return CommandLine("--help", OPTIONS_TOPIC)
    if not path or (len(path) == 1 and path[0] in GROUPS):
        return CommandLine("--help", *path[:1])
    path = path[:2] if path[0] in GROUPS else path[:1]
    return CommandLine("--help", _command(path, path).name)


def _expanded(words: list[str], path: list[str], at: int) -> list[str]:
    """Return the words with combined flags, such as `-sa`, divided at `at`."""
    command = BY_COMMAND.get(" ".join(path))
    if re.fullmatch(r"-[a-z]{2,4}", words[at]) and option_of(command, words[at]) is None:
        parts = [f"-{letter}" for letter in words[at][1:]]
        found = [option_of(command, part) for part in parts]
        if all(one is not None and one.kind is Form.FLAG for one in found):
            words[at:at + 1] = parts
    return words


def _take(line: CommandLine, path: list[str], words: list[str], at: int) -> int:
    """Consume the word at `at`, with its value if it has one, and return the number of consumed words."""
    word = words[at]
    if not word.startswith("-") or word == "-":
        if not path or (path[0] in GROUPS and len(path) == 1):
            path.append(word)
            _command(path, line.typed, is_whole=len(path) == 2 or path[0] not in GROUPS)
        elif not word.strip():
            raise ArgvError(f"dlim {' '.join(path)}: an operand is empty")
        else:
            line.operands.append(word)
        return 1
    command = BY_COMMAND.get(" ".join(path))
    found = typed_option(words, at, partial(option_of, command), partial(_unknown_option, command, path))
    _set(line, found.option, found.name, found.text)
    return found.words


def _set(line: CommandLine, option: Option, typed: str, text: str | None) -> None:
    value: object = True if text is None else convert(option._replace(name=typed), text)
    if option.multiple:
        value = [*line.many(option.name), value]
    elif line.values.get(option.name, value) != value:
        raise ArgvError(f"{typed} is given twice with different values")
    line.values[option.name] = value
    line.given.append(Given(option, text, typed))


def _command(path: list[str], typed: Sequence[str], is_whole: bool = True) -> DlimCommand:
    """Return the command that words name. Raises ArgvError unless they do; with `is_whole` False, the second word is
    still missing. `typed`: the whole command line."""
    found = BY_COMMAND.get(" ".join(path))
    if found is not None or not is_whole:
        return found or COMMANDS[0]
    if not path:
        raise ArgvError("no command is given")
    if path[0] in GROUPS and len(path) == 1:
        names = ", ".join(one.name.split()[1] for one in COMMANDS if one.name.startswith(f"{path[0]} "))
        raise ArgvError(f"dlim {path[0]} needs one of: {names}")
    meant = meant_command(path)
    text = f"unknown command '{' '.join(path)}'"
    raise ArgvError(f"{text}; did you mean: {_corrected(path, meant, list(typed))}" if meant else text)


def _corrected(path: list[str], meant: str, typed: list[str]) -> str:
    """Return the command line with the command that is meant, or that command with its operands if the rest of the
    line does not fit it, or has a secret."""
    name = " ".join(meant.split()[:2] if meant.split(maxsplit=1)[0] in GROUPS else meant.split()[:1])
    words = [*name.split(), *typed[len(path):]]
    is_secret = any(word.partition("=")[0] in _SECRETS for word in words)
    if typed[:len(path)] == path and not is_secret:
        with suppress(ArgvError):
            parse_dlim(words)
            return shlex.join(["dlim", *words])
    return f"dlim {meant}"


def meant_command(path: Sequence[str]) -> str | None:
    """Return the command that words probably mean, with its operands, or None. A typing error never leads to a command
    that destroys: only a word with that meaning does."""
    known = [command.name for command in COMMANDS if not command.destroys]
    if path[0] in GROUPS:
        second = (SECOND if path[0] == "model" else SECOND_OF_RUNTIMES).get(path[1])
        name = f"{path[0]} {second}" if second else _near(
            path[1], [one.split()[1] for one in known if one.startswith(f"{path[0]} ")])
        name = name if name is None or name in BY_COMMAND else f"{path[0]} {name}"
    else:
        name = SYNONYMS.get(path[0]) or _near(path[0], [*known, *GROUPS])
    if name is None:
        return None
    return f"{name} {BY_COMMAND[name].operands}".strip() if name in BY_COMMAND else name


def _near(word: str, known: Sequence[str]) -> str | None:
    found = difflib.get_close_matches(word, known, n=1, cutoff=0.7)
    return found[0] if found else None


def _unknown_option(command: DlimCommand | None, path: list[str], name: str) -> str:
    where = " ".join(["dlim", *path])
    known = [spelling for one in options_of(command) if not one.hidden for spelling in (one.name, *one.aliases)
             if spelling.startswith("--")]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    return f"unknown option '{name}' of {where}" + (f"; did you mean {near[0]}?" if near else "")


def _check(line: CommandLine, command: DlimCommand) -> None:
    """Raise ArgvError for a wrong number of operands, or for a missing option."""
    count = len(line.operands)
    if count > command.most:
        raise ArgvError(f"unexpected word '{line.operands[command.most]}'")
    if count < command.least:
        raise ArgvError(f"dlim {command.name} needs {command.operands}; for example: {command.examples[0][0]}")
    if any(option.name == "--file" for option in command.options) and not line.text("--file"):
        raise ArgvError(f"dlim {command.name} needs -f FILE; for example: {command.examples[0][0]}")
