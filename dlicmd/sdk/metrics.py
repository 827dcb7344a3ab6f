"""The metrics that programs record: the lines of evaluation-metrics.txt, the last value of each metric, and tables of
curves."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dlicmd.contract.reading import at, number, words
from dlicmd.sdk.objects import Curve
from dlicmd.sdk.transport import split_lines

#: The `type` of a value that is a whole number.
_INTEGER = 2


def records(chunks: Iterable[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the records in lines that arrive in pieces, each with the number of its file. An empty line separates
    files. Lines that are not records are left out."""
    file = 1
    for line in split_lines(chunks):
        file += not line
        try:
            record = json.loads(line) if line else None
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            yield file, record


def last_values(found: Iterable[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
    """Return the last value of each metric, by its group and name. For several files, return the mean of numbers."""
    last: dict[str, dict[int, Any]] = {}
    for file, record in found:
        values = record.get("values")
        for name, value in values.items() if isinstance(values, dict) else ():
            last.setdefault(f"{words(record.get('grouplabel'))} {name}".strip(), {})[file] = _plain(value)
    return {name: _of_all(list(of_files.values())) for name, of_files in last.items()}


def table(curves: Sequence[Curve]) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the names of the columns and the rows of a table of curves: a row for each step, in the order of the
    steps. Units of steps are not mixed."""
    columns = ["step", "step_unit", "time"]
    count = Counter([*columns, *(curve.name for curve in curves)])
    names = [curve.name if count[curve.name] == 1 else f"{curve.name} ({curve.source})" for curve in curves]
    rows: dict[tuple[str, float], dict[str, Any]] = {}
    for curve, name in zip(curves, names, strict=True):
        for step, value, time in curve.points:
            row = rows.setdefault((curve.step_unit, step), {
                "step": int(step) if step.is_integer() else step, "step_unit": curve.step_unit, "time": None,
                **dict.fromkeys(names)})
            row[name] = value
            row["time"] = time if row["time"] is None else row["time"]
    return [*columns, *dict.fromkeys(names)], [rows[key] for key in sorted(rows)]


def _plain(value: Any) -> Any:
    """Return a recorded value: a number if its type says so and it is finite, else text."""
    text, kind = at(value, "value"), at(value, "type")
    found = number(text) if kind is not None else None
    if found is None:
        return words(text)
    return int(found) if kind == _INTEGER and found.is_integer() else found


def _of_all(values: list[Any]) -> Any:
    if len(values) == 1 or any(isinstance(value, str) for value in values):
        return values[-1]
    return sum(values) / len(values)
