"""The metrics of jobs as curves on the terminal, as data, or in a file."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest
from typing import Any

from dlicmd.cli import export
from dlicmd.cli.commands.curves import Metrics, chosen, fetched, measured
from dlicmd.cli.commands.plot_groups import grouped
from dlicmd.cli.render import emit, emit_value, scalar, show_rows
from dlicmd.cli.session import Session
from dlicmd.cli.show.panels import drawn
from dlicmd.cli.show.series import Series
from dlicmd.cli.show.times import iso
from dlicmd.contract import wire
from dlicmd.contract.exits import Exit
from dlicmd.contract.metric_names import is_loss, meant
from dlicmd.contract.reading import whole
from dlicmd.sdk.errors import DlicmdError
from dlicmd.sdk.messages import info, one_line

METRIC, RESOURCES, GROUP = "--metric", "--resources", "--group"
SERIES, VALUE = "series", "value"
#: Columns of a mean of several jobs: the lowest value, the highest one, and how many jobs have a value.
LOW, HIGH, JOBS = "low", "high", "jobs"
_COLUMNS = (wire.ID, SERIES, wire.STEP, VALUE)
_EXPORTED = (wire.ID, "name", SERIES, wire.STEP, "step_unit", VALUE, wire.UNIT, wire.TIME, wire.SOURCE)
#: The line of code for programs that record no metrics.
_REMEDY = "in the program, write: import dlicmd; dlicmd.log(loss=loss.item(), step=step)"
#: What a job lacks that has nothing to plot.
_NO_METRICS, _NO_LOSSES = f"no metrics{{yet}}; {_REMEDY}", "no losses{yet} in logs and recorded metrics"
_NOT_MEASURED = "no CPU and memory recorded{yet}; a job has them after 3 s"
#: The curves of --resources that are drawn by default.
_MEASURED = ("cpu", "memory", "gpu", "gpu-memory")
#: Most names of metrics or jobs in a message.
_MOST_LISTED = 20


def plot(session: Session) -> int:
    """Draw the metrics of jobs; as data or in columns, print the points; with --export, write them to a file. Raises
    DlicmdError when there are none."""
    output, patterns = session.output, list(session.line.many(METRIC))
    file = export.checked(session.line.text(export.OPTION))
    client, offered = session.client, session.client.extensions()
    found = [client.exec(name) for name in dict.fromkeys(session.operands)]
    if session.line.flag(RESOURCES):
        if wire.EXT_RESOURCES not in offered:
            raise DlicmdError("this server does not record the CPU and the memory in use")
        jobs = [measured(client, one) for one in found]
        series = _selected(jobs, patterns or [name for name in _MEASURED if any(name in job.names for job in jobs)],
                           _NOT_MEASURED)
    else:
        series = _selected([fetched(client, one, offered, patterns) for one in found], patterns,
                           _NO_METRICS if wire.EXT_CURVES in offered else _NO_LOSSES)
    if names := session.line.many(GROUP):
        series = grouped(found, series, names)
    if file is not None:
        count = _export(file, series)
        if output.is_data:
            emit_value({wire.PATH: file, wire.ROWS: count}, output)
        else:
            emit(one_line(f"wrote {count} points to {file}"))
    elif output.form:
        points = [row for one in series for row in _point_rows(one)]
        show_rows(points, output, _COLUMNS, lambda row, name: scalar(row.get(name)))
    else:
        size = shutil.get_terminal_size()
        emit(drawn(series, size.columns, size.lines))
    return Exit.DONE


def _selected(jobs: Sequence[Metrics], patterns: Sequence[str], lack: str) -> list[Series]:
    """Return the series to plot, and report what is left out. `lack` is the message about a job without any series.
    Raises DlicmdError when there are none."""
    names = list(dict.fromkeys(name for job in jobs for name in job.names))
    taken = chosen(patterns, names)
    series = [one for name in taken for job in jobs for one in job.series if one.metric == name]
    lacking: dict[str, list[str]] = {}
    for job in jobs:
        if not any(one.metric in taken for one in job.series):
            lacking.setdefault(_lack(job, taken, patterns, lack), []).append(job.id)
    lacks = [f"{_listed(ids)}: {why}" for why, ids in lacking.items()]
    if not series:
        raise DlicmdError("nothing to plot for " + "; ".join(lacks))
    for why in lacks:
        info(f"left out {why}")
    for job in jobs:
        if any(one.job == job.id for one in series) and (lost := _lost(job, taken)):
            info(f"left out {_counted(lost)} of {job.id}: not a finite number")
    for pattern in patterns:
        if not meant(pattern, names):
            info(f"no job has a metric '{pattern}'; known: {_listed(names)}")
    return series


def _lost(job: Metrics, names: Collection[str]) -> int:
    """Return how many values of these metrics are not points."""
    return sum(count for name, count in job.left.items() if name in names)


def _lack(job: Metrics, taken: Sequence[str], patterns: Sequence[str], lack: str) -> str:
    """Return why a job has none of these metrics: `lack`, with its mark for running jobs, if it has no others."""
    if lost := _lost(job, taken):
        return f"{_counted(lost)}, but no finite number"
    if job.names:
        asked = " or ".join(f"'{name}'" for name in patterns or taken)
        return f"no metric {asked}; known: {_listed(job.names)}"
    return lack.format(yet="" if job.ended else " yet")


def _counted(values: int) -> str:
    return f"{values} value{'' if values == 1 else 's'}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return ", ".join(names[:_MOST_LISTED]) + more


def _point_rows(series: Series) -> Iterator[dict[str, Any]]:
    """Yield the points of a series as rows. Values that are not known are left out."""
    is_of_loss = is_loss(series.metric)
    for (step, value, seconds), ends in zip_longest(series.points, series.band):
        row = {wire.ID: series.job, SERIES: series.metric, wire.STEP: whole(step), VALUE: value}
        if is_of_loss:
            row[wire.LOSS] = value
        if seconds is not None and (moment := iso(seconds)):
            row[wire.TIME] = moment
        if ends is not None:
            row |= {LOW: ends.low, HIGH: ends.high, JOBS: ends.curves}
        yield row


def _export(name: str, series: Sequence[Series]) -> int:
    """Write the points of all series to a file, and return their number."""
    rows = [row | {"name": one.name or None, "step_unit": one.step_unit, wire.UNIT: one.unit or None,
                   wire.SOURCE: one.source or None} for one in series for row in _point_rows(one)]
    export.write(name, rows, (*_EXPORTED, *((LOW, HIGH, JOBS) if any(one.band for one in series) else ())))
    return len(rows)
