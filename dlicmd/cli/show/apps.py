"""Output about applications, as the scheduler calls jobs: tables, and a summary of the last hours."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dlicmd.cli.render import Output, emit, emit_value, scalar, show_rows
from dlicmd.cli.show import recorded
from dlicmd.cli.show.cluster import node_finder, pods
from dlicmd.cli.show.recorded import RecordedTable
from dlicmd.cli.show.table import MISSING
from dlicmd.cli.show.times import full, precise, short, since
from dlicmd.contract import application, states, wire
from dlicmd.contract.application import ApplicationResources
from dlicmd.contract.reading import epoch
from dlicmd.sdk.client import Client
from dlicmd.sdk.objects import Application
from dlicmd.sdk.scheduler_calls import MOST_APPLICATIONS

COLUMNS = ("id", "consumer", "submit_user", "name", "pri", "type", "state", "num", "gpu", "mem", "cpu", "submit_time",
           "start_time", "age")
HISTORY = (*COLUMNS[:-1], "duration")
NODES = "nodes"
_HOURS = 2
_AMOUNTS = ("cpu", "gpu", "mem")


def active(client: Client, start: int = 0, length: int = MOST_APPLICATIONS) -> list[Application]:
    """Return the pending and running applications, oldest first; `start` and `length` count from the newest."""
    found = client.engine_applications(application.ACTIVE_STATES, start, length)
    return sorted((app for app in found if application.is_active(app)), key=_age)


def ended(client: Client, start: int = 0, length: int = MOST_APPLICATIONS) -> list[Application]:
    """Return the applications that have ended, oldest first; `start` and `length` count from the newest."""
    found = client.engine_applications(application.ENDED_STATES, start, length)
    return sorted((app for app in found if not application.is_active(app)), key=_age)


def show_applications(
    client: Client, found: Sequence[Mapping[str, Any]], output: Output, columns: Sequence[str] = COLUMNS,
) -> None:
    """Print applications, members of a pack below the pack. If the server says why one of them is pending, add that
    column."""
    told = (wire.MESSAGE,) if any(app.get(wire.MESSAGE) for app in found) and columns == COLUMNS else ()
    nodes = node_finder(pods(client) if NODES in output.columns else ())
    rows = found if output.is_data else [{**app, **_indented(app, depth)} for depth, app in packed(found)]
    show_rows(rows, output, (*columns, *told), lambda app, column: cell(app, column, nodes),
              RecordedTable(columns, recorded_cell))


def packed(found: Sequence[Mapping[str, Any]]) -> list[tuple[int, Mapping[str, Any]]]:
    """Return every application once, with its depth. Members of a pack follow the pack, one level deeper; the rest
    keeps its order."""
    packs = {application.identity(app) for app in found if application.is_pack(app)} - {""}
    members: dict[str, list[Mapping[str, Any]]] = {}
    tops = []
    for app in found:
        pack = "" if application.is_pack(app) else application.pack(app)
        if pack in packs:
            members.setdefault(pack, []).append(app)
        else:
            tops.append(app)
    listed: list[tuple[int, Mapping[str, Any]]] = []
    for app in tops:
        below = members.pop(application.identity(app), ()) if application.is_pack(app) else ()
        listed += [(0, app), *((1, member) for member in below)]
    return listed


def cell(app: Mapping[str, Any], column: str, nodes: Callable[[Mapping[str, Any]], str] = lambda _: "") -> str:
    """Return a column of the table, by its name or by the name of a field; `n/a` for neither."""
    if column in _AMOUNTS:
        return amount(column, amounts(app))
    begin, end = application.started(app), application.ended(app)
    special: dict[str, Callable[[], Any]] = {
        "state": lambda: states.plain(application.state(app)),
        "num": lambda: application.workers(app),
        "submit_time": lambda: short(application.submitted(app)) or None,
        "start_time": lambda: short(begin) or None,
        "end_time": lambda: short(end) or None,
        "age": lambda: since(application.submitted(app)),
        "duration": lambda: (since(begin, end) if begin and end else None) or "",
        NODES: lambda: nodes(app) or None,
        wire.MESSAGE: lambda: app.get(wire.MESSAGE) or "",
    }
    return scalar(special[column]() if column in special else app.get(application.FIELDS.get(column, column)))


def recorded_cell(app: Mapping[str, Any], column: str) -> Any:
    """Return a column of the original client's table."""
    if column in _AMOUNTS:
        return recorded.amounts(getattr(application.used(app), column), getattr(application.requested(app), column))
    begin = application.started(app)
    special: dict[str, Callable[[], Any]] = {
        "state": lambda: states.SHORT.get(application.state(app), application.state(app)),
        "num": lambda: application.workers(app),
        "submit_time": lambda: _second(application.submitted(app)),
        "start_time": lambda: _second(begin),
        "end_time": lambda: _second(application.ended(app)),
        "age": lambda: recorded.age(application.submitted(app)),
        "duration": lambda: recorded.age(begin, application.ended(app)) if begin and application.ended(app) else "",
    }
    return special[column]() if column in special else app.get(application.FIELDS.get(column, column))


def _second(value: Any) -> str | None:
    seconds = epoch(value)
    return None if seconds is None else full(seconds)


def amounts(app: Mapping[str, Any]) -> ApplicationResources:
    """Return the amounts that a running application holds; for any other application, its request."""
    return application.held(app) if application.is_running(app) else application.requested(app)


def amount(name: str, found: ApplicationResources) -> str:
    """Return `cpu`, `gpu` or `mem` as text: a count, or `512M`, `8G`."""
    value = getattr(found, name)
    if value is None:
        return MISSING
    if name != "mem" or not value:
        return f"{value:g}"
    return f"{value / 1024:.4g}G" if value >= 1024 else f"{value:.4g}M"


def show_summary(client: Client, output: Output, hours: int | None) -> None:
    """Print a summary of the last `hours` (2 when None) by tag and type. `curr_` columns have the amounts that running
    applications hold now. `hist_` columns have the requests of applications that have ended. Other columns count the
    applications in every state."""
    last = int(time.time())
    first = max(0, last - 3600 * (_HOURS if hours is None else hours))
    found = [app for app in _jobs(client.engine_applications()) if _in_hand(app, first)]
    groups: dict[tuple[str, str], list[Application]] = {}
    for app in found:
        groups.setdefault((application.tag(app), application.kind(app)), []).append(app)
    rows = [_summary(*key, groups[key]) for key in sorted(groups)]
    if output.is_data:
        emit_value(rows, output)
        return
    when = full if output.is_recorded else precise
    emit(f"From {when(first)} To {when(last)}")
    columns = ("tag", "type", *(f"{when}_{name}" for when in ("curr", "hist") for name in _AMOUNTS),
               *application.BUCKETS)
    show_rows(rows, output, columns, _summary_cell, RecordedTable(columns, _recorded_summary_cell))


def _jobs(found: Sequence[Application]) -> list[Application]:
    """Return the applications without the packs whose jobs are listed, too: their amounts would count twice."""
    named = {application.pack(app) for app in found if not application.is_pack(app)}
    return [app for app in found if not (application.is_pack(app) and application.identity(app) in named)]


def _summary(tag: str, kind: str, found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    now, before = ApplicationResources(0, 0, 0), ApplicationResources(0, 0, 0)
    for app in found:
        if application.is_running(app):
            now += application.held(app)
        elif not application.is_active(app):
            before += application.requested(app)
    buckets = [application.bucket(app) for app in found]
    sums = {f"{when}_{name}": getattr(total, name) for when, total in (("curr", now), ("hist", before))
            for name in _AMOUNTS}
    return {"tag": tag, "type": kind, **sums, **{name: buckets.count(name) for name in application.BUCKETS}}


def _age(app: Mapping[str, Any]) -> tuple[float, int, str]:
    """Return the sort key for age, the oldest first. Scripts submit several jobs in a second: then the number in the
    id decides."""
    name = application.identity(app)
    return epoch(application.submitted(app)) or 0.0, len(name), name


def _summary_cell(row: Mapping[str, Any], column: str) -> str:
    name = column.partition("_")[2]
    return amount(name, ApplicationResources(**{name: row[column]})) if name in _AMOUNTS else scalar(row.get(column))


def _recorded_summary_cell(row: Mapping[str, Any], column: str) -> Any:
    value = row.get(column)
    return f"{value or 0:.1f}" if column.partition("_")[2] in _AMOUNTS else value


def _in_hand(app: Mapping[str, Any], first: float) -> bool:
    """Return whether an application is active, or was submitted or ended since `first`."""
    times = (epoch(application.submitted(app)), epoch(application.ended(app)))
    return application.is_active(app) or any(moment is not None and moment >= first for moment in times)


def _indented(app: Mapping[str, Any], depth: int) -> dict[str, Any]:
    return {wire.ID: "  " * depth + application.identity(app)} if depth else {}
