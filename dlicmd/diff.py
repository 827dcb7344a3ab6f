"""What differs between two execs: what was asked for, how it ended, what came out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dlicmd.client import Client
from dlicmd.console import one_line
from dlicmd.contract import wire
from dlicmd.contract.argv import ArgvError, CommandLine, join_args, parse_argv, split_args
from dlicmd.contract.reading import words
from dlicmd.render import Output, emit, emit_value, scalar, show_columns
from dlicmd.table import table
from dlicmd.times import since

DURATION = "duration"
#: What the words of the program that are no options of it, are called; its options stand behind that name.
PROGRAM = "program"
_COLUMNS = ("name", "a", "b")
_BEFORE = (wire.STATE, wire.FRAMEWORK, wire.NUM_WORKER)
_AFTER = (wire.EXIT_CODE, wire.LOSS, wire.ACCURACY, wire.STEP, wire.EPOCH, wire.SAMPLES_PER_SECOND)
#: An option of a program, with its value when that is in the same word.
_OPTION = r"(--?[^\W\d][^=]*)(?:=(.*))?"


def show_diff(client: Client, first: str, second: str, output: Output) -> None:
    """Print what differs between two execs, in a table under their ids."""
    rows = differing(facts(client.exec(first)), facts(client.exec(second)))
    if output.is_data:
        emit_value({wire.ROWS: rows}, output)
    elif not rows:
        emit(f"{first} and {second} do not differ")
    elif output.columns:
        show_columns(rows, output.columns, lambda row, column: scalar(row.get(column)))
    else:
        # The letters keep the names of the columns apart, whatever the ids are.
        columns = ("name", f"A: {one_line(first)}", f"B: {one_line(second)}")
        emit(table([dict(zip(columns, map(scalar, row.values()), strict=True)) for row in rows], columns))


def differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of `name`, `a` and `b` of what is not the same; None stands for what one of the two does not have."""
    names = dict.fromkeys((*first, *second))
    return [dict(zip(_COLUMNS, (name, first.get(name), second.get(name)), strict=True)) for name in names
            if first.get(name) != second.get(name)]


def facts(found: Mapping[str, Any]) -> dict[str, Any]:
    """What is compared of an exec, by name; what it lacks is left out."""
    ran = since(found.get(wire.START_TIME), found.get(wire.END_TIME))
    shown = {name: found.get(name) for name in _BEFORE}
    shown |= _asked(words(found.get(wire.ARGS)))
    shown |= {DURATION: ran} | {name: found.get(name) for name in _AFTER}
    return {name: value for name, value in shown.items() if value is not None}


def _asked(args: str) -> dict[str, Any]:
    """The options of a submission and the words of its program; the text as it is where it does not make sense."""
    try:
        line = parse_argv(split_args(args), sent=True)
    except ArgvError:
        return {wire.ARGS: args}
    # How many workers there are to be, says the exec itself.
    options = {name: _value(value) for name, value in line.values.items() if name != "--numWorker"}
    return options | _program(line)


def _value(value: object) -> object:
    return join_args(map(str, value)) if isinstance(value, list) else value


def _program(line: CommandLine) -> dict[str, Any]:
    """The words of the program: its options by name, each with the word that follows it, and the other words."""
    found: dict[str, list[str]] = {}
    name = ""
    for word in line.program:
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
    return {f"{PROGRAM} {option}".rstrip(): join_args(taken) if taken else True for option, taken in found.items()}
