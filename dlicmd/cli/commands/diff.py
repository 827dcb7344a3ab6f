"""The differences between execs: their options, their ends, their metrics and, for two execs, their code."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from dlicmd.cli import export
from dlicmd.cli.commands.curves import fetched
from dlicmd.cli.render import emit, emit_value, scalar, show_columns
from dlicmd.cli.session import Session
from dlicmd.cli.show import code_diff
from dlicmd.cli.show.comparison import BEST, DURATION, Compared, Extremes, differing, drawn
from dlicmd.cli.show.times import since
from dlicmd.contract import code_changes, wire
from dlicmd.contract.exits import Exit
from dlicmd.contract.metric_names import best_first, meant, spelled
from dlicmd.contract.reading import epoch, number, whole, words
from dlicmd.contract.submission_values import asked
from dlicmd.sdk.client import Client
from dlicmd.sdk.errors import UsageProblem
from dlicmd.sdk.messages import info, one_line
from dlicmd.sdk.metrics import last_values

SORT = "--sort"
JOBS, SECONDS = "jobs", "seconds"
_COLUMNS = ("name", "a", "b")
_BEFORE = (wire.APP_NAME, wire.STATE, wire.FRAMEWORK, wire.NUM_WORKER)
_AFTER = (wire.EXIT_CODE, wire.LOSS, wire.ACCURACY, wire.STEP, wire.EPOCH, wire.SAMPLES_PER_SECOND)
#: Values of an exec that are metrics, which its curves contain, too.
_OF_CURVES = (wire.LOSS, wire.ACCURACY)


def diff(session: Session) -> int:
    """Print the differences between execs in a table, for two execs with the differences of their files below it; or
    write all values to a file. Raises UsageProblem when no exec has the metric to sort by."""
    client, output = session.client, session.output
    file = export.checked(session.line.text(export.OPTION))
    offered = client.extensions()
    compared = _spelled_alike([_compared(client, name, offered) for name in session.operands])
    jobs, first = _sorted(compared, session.line.text(SORT))
    if file is not None:
        _export(file, jobs)
        if output.is_data:
            emit_value({wire.PATH: file, wire.ROWS: len(jobs)}, output)
        else:
            emit(one_line(f"wrote {len(jobs)} jobs to {file}"))
        return Exit.DONE
    two = len(jobs) == 2
    rows = differing(jobs)
    pairs = [dict(zip(_COLUMNS, (name, *values), strict=True)) for name, values in rows.items()] if two else []
    code = _code(client, jobs, offered) if two else None
    if output.is_data:
        found = {wire.ROWS: pairs} if two else {JOBS: list(map(_data, jobs))}
        emit_value(found if code is None else {**found, wire.CODE: code}, output)
    elif output.columns:
        items = pairs if two else [{wire.ID: job.id, **job.values} for job in jobs]
        show_columns(items, output.columns, lambda row, column: scalar(row.get(column)))
    else:
        parts = list(filter(None, (drawn(jobs, first), code_diff.drawn(code) if code else "")))
        emit("\n\n".join(parts) or one_line(f"{' and '.join(job.id for job in jobs)} do not differ"))
    return Exit.DONE


def _compared(client: Client, exec_id: str, offered: Collection[str]) -> Compared:
    """Return an exec with its values and metrics, as far as the server gives them."""
    found = client.exec(exec_id)
    begin, end = epoch(found.get(wire.START_TIME)), epoch(found.get(wire.END_TIME))
    seconds = None if begin is None else (time.time() if end is None else end) - begin
    if wire.EXT_CURVES not in offered:
        recorded = last_values(client.metrics(exec_id)) if wire.EXT_METRICS in offered else {}
        return Compared(exec_id, facts(found) | recorded, {}, seconds)
    series = fetched(client, found, offered, None).series
    known = {name: value for name, value in facts(found).items() if name not in _OF_CURVES}
    metrics = {one.metric: Extremes(one.last, one.best, one.step_unit) for one in series}
    return Compared(exec_id, known, metrics, seconds)


def _spelled_alike(jobs: Sequence[Compared]) -> list[Compared]:
    """Return jobs whose metrics have one spelling, that of the first job, if names differ only in the case of
    letters."""
    known: dict[str, None] = {}
    found = []
    for job in jobs:
        names = {name: name if name in known else spelled(name, known) or name for name in job.metrics}
        if len(set(names.values())) < len(names):
            names = {name: name for name in names}
        known |= dict.fromkeys(names.values())
        found.append(job._replace(metrics={names[name]: ends for name, ends in job.metrics.items()}))
    return found


def _sorted(jobs: Sequence[Compared], text: str | None) -> tuple[list[Compared], str]:
    """Return jobs in the order of a metric or another value, and its name. A minus before the name reverses the order.
    Raises UsageProblem when no job has it."""
    if text is None:
        return list(jobs), ""
    pattern = text.removeprefix("-")
    values = [{name: found for name, value in job.values.items() if (found := number(value)) is not None}
              | ({} if job.seconds is None else {DURATION: job.seconds}) for job in jobs]
    known = list(dict.fromkeys(name for found in values for name in found))
    if not (named := meant(pattern, known)):
        metrics = [name for name in known if not any(name in job.facts for job in jobs)]
        raise UsageProblem(f"{SORT}: no job has a metric '{pattern}'; known: {', '.join(metrics) or 'none'}")
    name = named[0]
    order = best_first(range(len(jobs)), lambda at: values[at].get(name), name, worst=text.startswith("-"))
    return [jobs[at] for at in order], name.removeprefix(f"{BEST} ")


def _export(name: str, jobs: Sequence[Compared]) -> None:
    rows = []
    for job in jobs:
        row = {wire.ID: job.id, SECONDS: job.seconds, **job.values}
        row.pop(DURATION, None)
        rows.append(row)
    export.write(name, rows, list(dict.fromkeys(column for row in rows for column in row)))


def _data(job: Compared) -> dict[str, Any]:
    """Return a job for programs."""
    metrics = {name: {"last": last.value, wire.STEP: whole(last.step), BEST: best.value,
                      "bestStep": whole(best.step), wire.STEP_UNIT: unit}
               for name, (last, best, unit) in job.metrics.items()}
    seconds = {} if job.seconds is None else {SECONDS: job.seconds}
    return {wire.ID: job.id, **seconds, "values": job.facts, "metrics": metrics}


def _code(client: Client, jobs: Sequence[Compared], offered: Collection[str]) -> list[dict[str, Any]] | None:
    """Return the files that differ between two execs, or None if the server does not offer the code of execs."""
    if wire.EXT_CODE not in offered:
        info("this server does not return the code of execs: the code is not compared")
        return None
    told = [client.code(job.id) for job in jobs]
    for job, one in zip(jobs, told, strict=True):
        if one.get(wire.COMPLETE) is False:
            info(f"{job.id} has more files than the server lists: not all files are compared")
    a, b = map(code_changes.files, told)
    if unknown := code_changes.uncertain(a, b):
        info(f"not compared, because these files are too large for the server: {', '.join(unknown)}")
    return code_changes.changes(a, b)


def facts(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of an exec to compare, by name. Values that the exec lacks are left out."""
    ran = since(found.get(wire.START_TIME), found.get(wire.END_TIME))
    shown = {name: found.get(name) for name in _BEFORE}
    values = asked(words(found.get(wire.ARGS)))
    if shown[wire.APP_NAME] is not None:
        values.pop("--appName", None)
    shown |= values
    shown |= {DURATION: ran} | {name: found.get(name) for name in _AFTER}
    return {name: value for name, value in shown.items() if value is not None}
