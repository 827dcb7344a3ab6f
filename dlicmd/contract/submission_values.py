"""The values of a submission by name, to compare submissions: its options, and the options of its program."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from dlicmd.contract import wire
from dlicmd.contract.argv import ArgvError, join_args, parse_argv, split_args

#: Name of the value for words of the program that are not options. The name of the value of an option appends the
#: option to this name.
PROGRAM = "program"
#: Options whose values come from the exec itself.
_OF_EXEC = ("--appName", "--numWorker")
#: An option of a program, with its value if both are in one word.
_OPTION = r"(--?[^\W\d][^=]*)(?:=(.*))?"


def asked(args: str) -> dict[str, Any]:
    """Return the options of a submission and the words of its program; `args` unchanged if it cannot be parsed."""
    try:
        line = parse_argv(split_args(args), sent=True)
    except ArgvError:
        return {wire.ARGS: args}
    options = {name: _value(value) for name, value in line.values.items() if name not in _OF_EXEC}
    return options | program_values(line.program)


def program_values(words: Sequence[str]) -> dict[str, Any]:
    """Return the words of a program: its options by name, each with the word after it, and the other words."""
    found: dict[str, list[str]] = {}
    name = ""
    for word in words:
        option = re.fullmatch(_OPTION, word, re.DOTALL)
        if option is None:
            found.setdefault(name, []).append(word)
            name = ""
            continue
        name, glued = option[1], option[2]
        found.setdefault(name, [])
        if glued is not None:
            found[name].append(glued)
            name = ""
    return {f"{PROGRAM} {option}".rstrip(): _shown(option, taken) if taken else True for option, taken in found.items()}


def _shown(option: str, taken: Sequence[str]) -> str:
    """Return words as text. One word of an option needs no quotes, except where it would look like several words or
    like none."""
    return taken[0] if option and len(taken) == 1 and len(taken[0].split()) == 1 else join_args(taken)


def _value(value: object) -> object:
    return join_args(map(str, value)) if isinstance(value, list) else value
