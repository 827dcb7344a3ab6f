"""A table of the differences between jobs: for few jobs, a column for each job; for many, a row for each job."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dlicmd.cli.render import scalar
from dlicmd.cli.show.numbers import told_apart
from dlicmd.cli.show.series import Point
from dlicmd.cli.show.table import column_width, cut, table, terminal_width
from dlicmd.cli.show.views import step_text
from dlicmd.contract import wire
from dlicmd.contract.metric_names import losses_first
from dlicmd.contract.submission_values import PROGRAM
from dlicmd.sdk.messages import info, one_line

DURATION, BEST = "duration", "best"
#: Name on the wire → name for people.
_CALLED = {wire.APP_NAME: "name", wire.NUM_WORKER: "workers", wire.EXIT_CODE: "exit code",
           wire.SAMPLES_PER_SECOND: "samples/s"}
#: More jobs have a row each.
_MOST_COLUMNS = 3
#: Most metrics in a table with a row for each job.
_MOST_METRICS = 6
_GAP = 2


class Extremes(NamedTuple):
    """The last and the best point of a metric, and the unit of their steps."""

    last: Point
    best: Point
    step_unit: str = "step"


class Compared(NamedTuple):
    """A job to compare: `facts` are its values by name, without those that the job lacks. `seconds` is its duration, or
    None."""

    id: str
    facts: Mapping[str, Any]
    metrics: Mapping[str, Extremes]
    seconds: float | None = None

    @property
    def values(self) -> dict[str, Any]:
        """All values by name: the facts, the last value of each metric, and its best value as `best NAME`."""
        found = dict(self.facts)
        for name, (last, best, _) in self.metrics.items():
            found |= {name: last.value, f"{BEST} {name}": best.value}
        return found

    def step(self, name: str) -> str:
        """Return the step of the last or, for `best NAME`, the best value of a metric: `epoch 3`; "" if there is
        none."""
        for metric, (last, best, unit) in self.metrics.items():
            if name in (metric, f"{BEST} {metric}"):
                return step_text((last if name == metric else best).step, unit)
        return ""


def differing(jobs: Sequence[Compared]) -> dict[str, list[Any]]:
    """Return the values that differ between jobs: name → a value for each job, None for a value that a job lacks. The
    best values of a metric are left out if they are the last values, too."""
    values = [job.values for job in jobs]
    names = dict.fromkeys(name for found in values for name in found)
    rows = {name: [found.get(name) for found in values] for name in names}
    last = {f"{BEST} {name}": rows[name] for job in jobs for name in job.metrics}
    return {name: row for name, row in rows.items()
            if any(value != row[0] for value in row) and row != last.get(name)}


def drawn(jobs: Sequence[Compared], first: str = "") -> str:
    """Return the table; "" if the jobs do not differ. The metric `first` has the first column of many jobs."""
    rows = differing(jobs)
    if len(jobs) > _MOST_COLUMNS:
        return _of_many(jobs, rows, first)
    # The letters keep the column names distinct for any ids.
    columns = ("name", *(f"{letter}: {one_line(job.id)}" for letter, job in zip("ABC", jobs, strict=False)))
    widest = terminal_width() // 2 if sys.stdout.isatty() else None
    cells = [dict(zip(columns, (_heading(name, widest), *_with_steps(jobs, name, texts(row))), strict=True))
             for name, row in rows.items()]
    return table(cells, columns) if cells else ""


def _heading(name: str, widest: int | None) -> str:
    """Return the name of a row, at most `widest` columns of a terminal wide."""
    called = one_line(_CALLED.get(name, name))
    return called if widest is None else cut(called, widest)


def texts(values: Sequence[Any]) -> list[str]:
    """Return values as cells. Numbers are rounded only as far as they still differ."""
    numbers = iter(told_apart([value for value in values if _is_number(value)]))
    return [next(numbers) if _is_number(value) else scalar(value) for value in values]


def _with_steps(jobs: Sequence[Compared], name: str, cells: Sequence[str]) -> list[str]:
    """Return the cells of a metric with their steps: `0.4 (epoch 3)`; other cells unchanged."""
    return [f"{cell} ({step})" if (step := job.step(name)) else cell for job, cell in zip(jobs, cells, strict=True)]


def _of_many(jobs: Sequence[Compared], rows: Mapping[str, list[Any]], first: str) -> str:
    """Return a row for each job. Columns that do not fit on a terminal follow in further tables below."""
    named = sorted(losses_first(list(dict.fromkeys(name for job in jobs for name in job.metrics))),
                   key=lambda name: name != first)
    measured = [name for metric in named[:_MOST_METRICS] for name in (metric, f"{BEST} {metric}") if name in rows]
    if len(named) > _MOST_METRICS:
        info(f"{len(named) - _MOST_METRICS} more metrics are in the output of -o json and --export")
    hidden = {name for metric in named for name in (metric, f"{BEST} {metric}")}
    others = [name for name in rows if name not in hidden]
    order = [*([wire.APP_NAME] if wire.APP_NAME in rows else []), *measured,
             *sorted((name for name in others if name != wire.APP_NAME), key=_rank)]
    cells: dict[str, list[str]] = {wire.ID: [job.id for job in jobs]}
    for name in order:
        # Equal steps need no words.
        is_uneven = len({job.step(name) for job in jobs if name in job.metrics} - {""}) > 1
        cells[_title(name, cells)] = _with_steps(jobs, name, texts(rows[name])) if is_uneven else texts(rows[name])
    if len(cells) == 1:
        return ""
    blocks = _blocks(cells, terminal_width() if sys.stdout.isatty() else None)
    lines = [dict(zip(cells, line, strict=True)) for line in zip(*cells.values(), strict=True)]
    return "\n\n".join(table(lines, block) for block in blocks)


def _rank(name: str) -> int:
    """Return the place of a value among the columns: words of the program and options first, then the others."""
    return 0 if name.startswith(PROGRAM) else 1 if name.startswith("-") else 2 if name == DURATION else 3


def _title(name: str, taken: Mapping[str, object]) -> str:
    """Return the heading of a column: without `program` where no other column has the same heading."""
    short = name.removeprefix(f"{PROGRAM} ")
    return _CALLED.get(name, name if short in taken else short)


def _blocks(cells: Mapping[str, Sequence[str]], width: int | None) -> list[list[str]]:
    """Return the columns of each table: the first column in all of them, and as many others as fit."""
    widths = {name: max(map(column_width, map(one_line, (name, *column)))) for name, column in cells.items()}
    key, *names = cells
    blocks, used = [[key]], widths[key]
    for name in names:
        if width is not None and len(blocks[-1]) > 1 and used + _GAP + widths[name] > width:
            blocks.append([key])
            used = widths[key]
        blocks[-1].append(name)
        used += _GAP + widths[name]
    return blocks


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
