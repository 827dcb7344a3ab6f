"""Output about execs: the table, and one exec in detail."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dlicmd.cli.render import Output, emit, emit_value, scalar, show_rows
from dlicmd.cli.show import recorded
from dlicmd.cli.show.recorded import RecordedTable
from dlicmd.cli.show.table import terminal_width
from dlicmd.cli.show.times import localized, short, since
from dlicmd.contract import paralleljob, states, wire
from dlicmd.sdk import hints
from dlicmd.sdk.client import Client
from dlicmd.sdk.errors import Denied, ServerError
from dlicmd.sdk.messages import debug, fitted, inert
from dlicmd.sdk.objects import Exec, Files

#: The end of standard error that is shown of a failed exec.
_TAIL_LINES, _TAIL_BYTES = 8, 16_384
#: Lines of all streams that are searched for those of standard error.
_SEARCHED = 200
COLUMNS = ("id", "submit_user", "name", "framework", "type", "state", "num", "submit_time", "age")
_TYPES = {"True": "ELASTIC", "False": "PARALLEL"}


def show_execs(found: Sequence[Mapping[str, Any]], output: Output) -> None:
    """Print a list of execs."""
    show_rows(found, output, COLUMNS, cell, RECORDED)


def show_page(client: Client, exec_id: str, output: Output) -> None:
    """Print the facts about one exec, for people as a page."""
    if output.is_data or output.columns:
        _show_detail(detail(client, client.exec(exec_id)), output)
        return
    from dlicmd.cli.show.page import page  # only for people

    found = client.exec(exec_id)
    width = terminal_width() if sys.stdout.isatty() else None
    emit("\n".join(page(found, _written(client, found), last_errors(client, found), width)))


def _written(client: Client, found: Exec) -> Files | None:
    """Return the files that the program of an exec wrote; None if it is pending, or for other servers."""
    if not found.start_time or wire.EXT_FILES not in client.extensions():
        return None
    try:
        return client.files(found.id)
    except ServerError as problem:
        debug(f"no files of {found.id}: {problem}")
        return None


def last_errors(client: Client, found: Exec) -> list[str]:
    """Return the last lines that a failed exec wrote to its standard error, inert; none if they cannot be read."""
    if found.state != states.ERROR:
        return []
    from dlicmd.cli.show.page import has_run

    if not has_run(found):
        return []
    try:
        lines = _error_lines(client, found.id)
    except ServerError as problem:
        debug(f"no standard error of {found.id}: {problem}")
        return []
    # A carriage return begins a new line.
    return [part for line in lines for part in inert(line).split("\n") if part.strip()][-_TAIL_LINES:]


def _error_lines(client: Client, exec_id: str) -> list[str]:
    """Return lines at the end of standard error. A server that selects no lines sends all of it."""
    if wire.EXT_LINES in client.extensions():
        return [line.text for line in client.log_lines(exec_id, tail=_SEARCHED) if line.stream == "stderr"]
    tail = b""
    for chunk in client.train_log(exec_id, "errlog").chunks():
        tail = (tail + chunk)[-_TAIL_BYTES:]
    return tail.decode("utf-8", "replace").splitlines()


def show_exec(client: Client, exec_id: str, output: Output) -> None:
    """Print one exec in detail, for scripts of WMLA."""
    _show_detail(recorded_keys(detail(client, client.exec(exec_id))), output)


def recorded_keys(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return an exec without the lists and objects that only verbs show: scripts of WMLA make one row of each exec."""
    left_out = (wire.ARGUMENTS, wire.LAST_METRICS, wire.ALL_METRICS, wire.PARAMETERS)
    return {key: value for key, value in found.items() if key not in left_out}


def _show_detail(found: Mapping[str, Any], output: Output) -> None:
    if output.columns or output.form == "table":
        show_execs([found], output)
    else:
        emit_value(found, output)


#: Advice of the server → its text for people.
_ADVICE = {
    "wait": "the job {} without any action",
    "change": "submit the job again with a smaller request",
    "ask": "ask an administrator for a higher limit",
}


def show_why(client: Client, exec_id: str, output: Output) -> None:
    """Print why an exec is in its state."""
    found = client.why(exec_id)
    if output.is_data:
        emit_value(found, output)
        return
    from dlicmd.cli.show.page import why_ended, why_running

    if states.is_terminal(found.state) or (found.state == states.RUNNING and not found.reason):
        job = client.exec(exec_id)
        is_over = states.is_terminal(job.state)
        lines = why_ended(job, last_errors(client, job)) if is_over else why_running(job)
    else:
        lines = [inert(line) for line in _pending(found)]
    if sys.stdout.isatty():  # lines with an indent are those of a program, or short
        lines = [line if line.startswith(" ") else fitted(line, terminal_width()) for line in lines]
    emit("\n".join(lines))


def _pending(found: Mapping[str, Any]) -> list[str]:
    """Return why an exec is pending or parked, the execs that hold slots, and what to do."""
    state = found.get(wire.STATE)
    message = localized(str(found.get(wire.MESSAGE) or ""))
    if not message and str(state) in states.meant("PENDING"):
        message = "the scheduler has not considered the job yet; try again in a second"
    lines = [f"{found.get(wire.ID)} is {states.plain(str(state))}" + (f": {message}" if message else "")]
    holders = found.get(wire.HOLDERS)
    for holder in holders if isinstance(holders, list) else ():
        count = holder.get(wire.SLOTS)
        gives = holder.get(wire.GIVES)
        kept = "needs all of them" if holder.get(wire.ELASTIC) else "holds them until it finishes"
        kind = f"can release {gives} of them while it runs" if gives else kept
        kind = "shares them with other jobs" if holder.get(wire.SHARES) else kind
        if model := holder.get(wire.SERVED_MODEL):
            kind = f"serves the model {model} until you stop it: dlim model stop {model}"
        lines.append(f"  {holder.get(wire.ID)} holds {count} slot{'' if count == 1 else 's'}: {kind}")
    begins = "continues" if state == states.RUNNING else "starts"
    starts, advice = found.get(wire.STARTS), found.get(wire.ADVICE)
    if starts:
        lines.append(f"the job {begins} {starts}")
    if advice is not None:
        lines.append(f"{advice}: {_ADVICE.get(str(advice), '').format(begins)}")
    return [*lines, f"next: {hints.command('follow', str(found.get(wire.ID)))}; {hints.command('top')}"]


def cell(item: Mapping[str, Any], column: str) -> str:
    """Return a column of the table, by its name or by the name of a field; `n/a` for neither."""
    state = item.get(wire.STATE)
    special: dict[str, Any] = {
        "submit_user": item.get(wire.CREATOR, item.get("userName")),
        "name": item.get(wire.APP_NAME),
        "type": _TYPES.get(str(item.get(wire.ELASTIC))),
        "state": states.plain(state) if isinstance(state, str) else None,
        "num": item.get(wire.NUM_WORKER),
        "submit_time": short(item.get(wire.CREATE_TIME)) or None,
        "age": since(item.get(wire.CREATE_TIME)) if wire.CREATE_TIME in item else None,
        "app_id": application_id(item),
    }
    return scalar(special[column] if column in special else item.get(column))


def _recorded_cell(item: Mapping[str, Any], column: str) -> Any:
    """Return a column of the original client's table."""
    special: dict[str, Callable[[], Any]] = {
        "submit_user": lambda: item.get(wire.CREATOR),
        "name": lambda: item.get(wire.APP_NAME),
        "type": lambda: _TYPES.get(str(item.get(wire.ELASTIC))),
        "num": lambda: item.get(wire.NUM_WORKER),
        "submit_time": lambda: recorded.moment(item.get(wire.CREATE_TIME)),
        "age": lambda: recorded.age(item.get(wire.CREATE_TIME)),
        "app_id": lambda: application_id(item),
    }
    return special[column]() if column in special else item.get(column)


#: The original client's table. It shows states as servers send them.
RECORDED = RecordedTable(COLUMNS, _recorded_cell, empty=None)


def application_id(found: Mapping[str, Any]) -> str | None:
    """Return the id by which the scheduler knows an exec; None while it has none."""
    named = found.get(wire.APP_ID) or found.get(wire.SUBMISSION_ID)
    return named if isinstance(named, str) and named else None


def detail(client: Client, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return an exec with the times that it was pending and running. If it has not ended, add the scheduler's view of
    its job."""
    job = None
    app_id = application_id(found)
    if app_id is not None and not states.is_terminal(str(found.get(wire.STATE, ""))):
        try:
            job = client.kubernetes_object(paralleljob.KIND, app_id)
        except Denied:
            raise
        except ServerError as problem:
            debug(f"no {paralleljob.KIND} of {app_id}: {problem}")
    started, created = paralleljob.started(job) or found.get(wire.START_TIME), found.get(wire.CREATE_TIME)
    waited = since(paralleljob.created(job) or created) if paralleljob.is_pending(job) else None
    ran = since(started, found.get(wire.END_TIME)) if started else None
    more = {
        paralleljob.PENDING_DURATION: waited,
        paralleljob.RUNNING_DURATION: ran,
        paralleljob.PARALLEL_JOB_INFO: paralleljob.summary(job) if job else None,
    }
    return {**found, **{key: value for key, value in more.items() if value is not None}}
