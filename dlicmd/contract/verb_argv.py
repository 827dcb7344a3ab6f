"""The grammar of a command line that begins with a verb.

The words after the verb are its operands and options, in any order. Every option before `--` must be one that the verb
takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from dlicmd.contract.argv import ArgvError, CommandLine, Given, convert, typed_option
from dlicmd.contract.options import BY_NAME, COMMAND_NAMES, LAST, Option
from dlicmd.contract.verbs import (
    ALL,
    BY_VERB,
    HELP,
    IMPLIES,
    Verb,
    canonical,
    meant_command,
    meant_option,
    verb_option,
)

HELP_VERB, RUN = "help", "run"
#: Operand of `help` that asks for all long commands and options.
OPTIONS_TOPIC = "options"
#: Long commands that make a line with a verb a line of the long options.
_LONG = COMMAND_NAMES - {"--help", "--version"}


def is_verb_line(words: Sequence[str]) -> bool:
    """Return whether the first word makes this a command line of a verb. A long command anywhere before `--` does not:
    in its grammar, the first word may belong to a program."""
    if not words or words[0].startswith("-"):
        return False
    own = words[: words.index("--")] if "--" in words else words
    return words[0] == HELP_VERB or not any(word.partition("=")[0] in _LONG for word in own)


def parse_verb(words: Sequence[str]) -> CommandLine:
    """Parse a command line that begins with a verb, or with `help`. Raises ArgvError."""
    if words[0] == HELP_VERB:
        return _help_line(list(words[1:]))
    verb = BY_VERB.get(words[0])
    if verb is None:
        raise ArgvError(unknown_command(*words))
    own, after = list(words[1:]), None
    if "--" in own:
        cut = own.index("--")
        own, after = own[:cut], own[cut + 1 :]
    if not {HELP.name, *HELP.aliases}.isdisjoint(own):
        return _help_line([verb.name])
    line = CommandLine(verb.command)
    line.verb, line.typed = verb.name, tuple(words)
    line.after_dashes = after
    position = 0
    while position < len(own):
        position += _take(line, verb, own, position)
    if after is not None:
        if not verb.program:
            raise ArgvError(f"dlicmd {verb.name} takes no words after --")
        line.program = list(after)
    _check_operands(line, verb)
    return line


def unknown_command(word: str, *rest: str) -> str:
    """Return the message about a first word that is not a verb. `rest`: the words after it."""
    from dlicmd.contract import corrected  # only after a mistake

    meant = meant_command(word)
    if meant is None and rest and rest[0].endswith(".py"):
        meant = f"{RUN} {rest[0]}"
    text = f"unknown command '{word}'"
    return f"{text}; did you mean: {corrected.with_command(word, meant, rest, _is_valid)}" if meant else text


def _is_valid(words: Sequence[str]) -> bool:
    try:
        parse_verb(words)
    except ArgvError:
        return False
    return True


def _help_line(topics: list[str]) -> CommandLine:
    if len(topics) > 1:
        raise ArgvError(f"dlicmd help takes 1 command, such as: dlicmd help {topics[0]}")
    for topic in topics:
        if topic not in BY_VERB and topic not in BY_NAME and topic != OPTIONS_TOPIC:
            meant = (meant_command(topic) or "").partition(" ")[0]
            text = f"unknown command '{topic}'"
            raise ArgvError(f"{text}; did you mean: dlicmd {HELP_VERB} {meant}" if meant in BY_VERB else text)
    return CommandLine("--help", *topics)


def _take(line: CommandLine, verb: Verb, words: list[str], at: int) -> int:
    """Consume the word at `at`, with its value if it has one, and return the number of consumed words."""
    word = words[at]
    if not word.startswith("-") or word == "-":
        if len(line.operands) == verb.most:
            advice = f"; {_for_program(line, verb, words)}" if verb.program else ""
            raise ArgvError(f"unexpected word '{word}'{advice}")
        if not word.strip():
            raise ArgvError(f"dlicmd {verb.name}: an operand is empty")
        line.operands.append(word)
        return 1
    found = typed_option(words, at, partial(verb_option, verb), lambda _: _unknown_option(line, verb, words, at))
    _set(line, found.option, found.name, found.text)
    return found.words


def _set(line: CommandLine, option: Option, typed: str, text: str | None) -> None:
    """Store an option as the option of the option table that it stands for. Raises ArgvError."""
    shown = typed if typed.startswith("--") else option.name
    if option.metavar == "NAME=VALUE" and "=" not in (text or ""):
        raise ArgvError(f"{shown}: '=' is missing in '{text}'; write {shown} NAME=VALUE")
    value: object = True if text is None else convert(option._replace(name=shown), text)
    stored = canonical(option, BY_VERB[line.verb or RUN])
    if stored.multiple:
        kept = line.values.setdefault(stored.name, [])
        assert isinstance(kept, list)
        kept.append(value)
    elif line.values.get(stored.name, value) != value:
        from dlicmd.contract import corrected  # only after a mistake

        raise ArgvError(corrected.with_typed_options(
            line.typed, f"{shown} {text}: {stored.name} is already {line.values[stored.name]}"))
    else:
        line.values[stored.name] = value
    line.given.append(Given(stored, text))
    if option.name in IMPLIES:
        name, implied = IMPLIES[option.name]
        _set(line, BY_NAME[name], typed, implied)


def _check_operands(line: CommandLine, verb: Verb) -> None:
    """Raise ArgvError for too few operands, or for operands beside `--all`."""
    if verb.most > 1 and verb.least == 0 and verb.ids:
        if line.flag(ALL) and line.operands:
            raise ArgvError(f"dlicmd {verb.name}: give ids, or {ALL}, not both")
        if not line.flag(ALL) and not line.operands:
            raise ArgvError(f"{verb.name} needs ids, or {ALL}; the ids of your jobs: dlicmd ls")
    if verb.ids == 1 and verb.least == 0 and not line.operands:
        line.operands = [LAST]
    if len(line.operands) < verb.least:
        raise ArgvError(_needed(verb))


def _needed(verb: Verb) -> str:
    """Return the message about missing operands, with a command to type."""
    if verb.ids > 1 and verb.least > 1:
        return f"{verb.name} needs {verb.least} ids or more; the ids of your jobs: dlicmd ls"
    if verb.ids and verb.least == 1:
        return f"{verb.name} needs the id of a job; for your newest job: dlicmd {verb.name} {LAST}"
    return f"{verb.name} needs {verb.operands}; for example: {verb.examples[0][0]}"


def _unknown_option(line: CommandLine, verb: Verb, words: list[str], at: int) -> str:
    """Return the message about an option that a verb lacks, with the line to type in its place."""
    from dlicmd.contract import corrected  # only after a mistake

    name = words[at].partition("=")[0]
    text, meant = f"unknown option '{name}' of dlicmd {verb.name}", meant_option(verb, name)
    if meant is not None:
        text += f"; did you mean: {corrected.with_option(verb, words, at, meant, line.after_dashes)}"
    return f"{text}; {_for_program(line, verb, words)}" if verb.program else text


def _for_program(line: CommandLine, verb: Verb, words: list[str]) -> str:
    """Return the advice for a word that may be meant for the program."""
    from dlicmd.contract import corrected  # only after a mistake

    return f"for your program: {corrected.for_program(verb, words, line.after_dashes)}"
