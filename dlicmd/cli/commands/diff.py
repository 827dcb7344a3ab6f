"""The differences between two execs: their options, their ends, their results and their code."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from dlicmd.cli.render import emit, emit_value, scalar, show_columns
from dlicmd.cli.session import Session
from dlicmd.cli.show.code_diff import changes, drawn, files, uncertain
from dlicmd.cli.show.table import table
from dlicmd.cli.show.times import since
from dlicmd.contract import wire
from dlicmd.contract.argv import ArgvError, CommandLine, join_args, parse_argv, split_args
from dlicmd.contract.exits import Exit
from dlicmd.contract.reading import words
from dlicmd.sdk.client import Client
from dlicmd.sdk.messages import info, one_line
from dlicmd.sdk.metrics import last_values

DURATION = "duration"
#: Name of the row for words of the program that are not options. The row of an option appends the option to this name.
PROGRAM = "program"
_COLUMNS = ("name", "a", "b")
_BEFORE = (wire.STATE, wire.FRAMEWORK, wire.NUM_WORKER)
_AFTER = (wire.EXIT_CODE, wire.LOSS, wire.ACCURACY, wire.STEP, wire.EPOCH, wire.SAMPLES_PER_SECOND)
#: Name on the wire → name for people.
_CALLED = {wire.NUM_WORKER: "workers", wire.EXIT_CODE: "exit code", wire.SAMPLES_PER_SECOND: "samples/s"}
#: Digits that people see of a fractional number: the fewest, and the most before all digits are shown.
_FEWEST, _MOST = 4, 16
#: An option of a program, with its value if both are in one word.
_OPTION = r"(--?[^\W\d][^=]*)(?:=(.*))?"


def diff(session: Session) -> int:
    """Print the differences between two execs in a table under their ids, and those of their files below it."""
    client, output, (first, second) = session.client, session.output, session.operands
    found = [client.exec(first), client.exec(second)]
    offered = client.extensions()
    a, b = (facts(one) | _measured(client, name, offered) for one, name in zip(found, (first, second), strict=True))
    rows, code = differing(a, b), _code(client, first, second, offered)
    if output.is_data:
        emit_value({wire.ROWS: rows} | ({} if code is None else {wire.CODE: code}), output)
    elif output.columns:
        show_columns(rows, output.columns, lambda row, column: scalar(row.get(column)))
    elif not rows and not code:
        emit(f"{first} and {second} do not differ")
    else:
        # The letters keep the column names distinct for any two ids.
        columns = ("name", f"A: {one_line(first)}", f"B: {one_line(second)}")
        cells = [dict(zip(columns, _cells(row), strict=True)) for row in rows]
        emit("\n\n".join([*([table(cells, columns)] if rows else []), *([drawn(code)] if code else [])]))
    return Exit.DONE


def _cells(row: Mapping[str, Any]) -> list[str]:
    """Return a row for people. Numbers are rounded only as far as they still differ."""
    name, *values = (row[column] for column in _COLUMNS)
    rounded = ([_rounded(value, digits) for value in values] for digits in range(_FEWEST, _MOST + 1))
    a, b = next((shown for shown in rounded if shown[0] != shown[1]), map(scalar, values))
    return [_CALLED.get(name, name), a, b]


def _rounded(value: Any, digits: int) -> str:
    if not isinstance(value, float):
        return scalar(value)
    return f"{value:.0f}" if 10 ** digits <= abs(value) < 10 ** _MOST else f"{value:.{digits}g}"


def _measured(client: Client, exec_id: str, offered: Collection[str]) -> dict[str, Any]:
    """Return the last value of each metric that the program recorded, if the server offers metrics."""
    return last_values(client.metrics(exec_id)) if wire.EXT_METRICS in offered else {}


def _code(client: Client, first: str, second: str, offered: Collection[str]) -> list[dict[str, Any]] | None:
    """Return the files that differ between two execs, or None if the server does not offer the code of execs."""
    if wire.EXT_CODE not in offered:
        info("this server does not return the code of execs: the code is not compared")
        return None
    told = [client.code(first), client.code(second)]
    for name, one in zip((first, second), told, strict=True):
        if one.get(wire.COMPLETE) is False:
            info(f"{name} has more files than the server lists: not all files are compared")
    a, b = map(files, told)
    if unknown := uncertain(a, b):
        info(f"not compared, because these files are too large for the server: {', '.join(unknown)}")
    return changes(a, b)


def differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return rows of `name`, `a` and `b` for the values that differ. None stands for a value that one exec lacks."""
    names = dict.fromkeys((*first, *second))
    return [dict(zip(_COLUMNS, (name, first.get(name), second.get(name)), strict=True)) for name in names
            if first.get(name) != second.get(name)]


def facts(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of an exec to compare, by name. Values that the exec lacks are left out."""
    ran = since(found.get(wire.START_TIME), found.get(wire.END_TIME))
    shown = {name: found.get(name) for name in _BEFORE}
    shown |= _asked(words(found.get(wire.ARGS)))
    shown |= {DURATION: ran} | {name: found.get(name) for name in _AFTER}
    return {name: value for name, value in shown.items() if value is not None}


def _asked(args: str) -> dict[str, Any]:
    """Return the options of a submission and the words of its program; `args` unchanged if it cannot be parsed."""
    try:
        line = parse_argv(split_args(args), sent=True)
    except ArgvError:
        return {wire.ARGS: args}
    # The number of workers comes from the exec itself.
    options = {name: _value(value) for name, value in line.values.items() if name != "--numWorker"}
    return options | _program(line)


def _value(value: object) -> object:
    return join_args(map(str, value)) if isinstance(value, list) else value


def _program(line: CommandLine) -> dict[str, Any]:
    """Return the words of the program: its options by name, each with the word after it, and the other words."""
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
