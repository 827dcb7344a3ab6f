"""Output about execs: the table, and one exec in detail."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dlicmd.cli.render import Output, emit, emit_value, scalar, show_rows
from dlicmd.cli.show import recorded
from dlicmd.cli.show.recorded import RecordedTable
from dlicmd.cli.show.times import short, since
from dlicmd.contract import paralleljob, states, wire
from dlicmd.sdk.client import Client
from dlicmd.sdk.errors import Denied, ServerError
from dlicmd.sdk.messages import debug, inert

COLUMNS = ("id", "submit_user", "name", "framework", "type", "state", "num", "submit_time", "age")
_TYPES = {"True": "ELASTIC", "False": "PARALLEL"}


def show_execs(found: Sequence[Mapping[str, Any]], output: Output) -> None:
    """Print a list of execs."""
    show_rows(found, output, COLUMNS, cell, RECORDED)


def show_exec(client: Client, exec_id: str, output: Output) -> None:
    """Print one exec in detail."""
    found = detail(client, client.exec(exec_id))
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


def show_why(found: Mapping[str, Any], output: Output) -> None:
    """Print why an exec is pending."""
    if output.is_data:
        emit_value(found, output)
        return
    state = found.get(wire.STATE)
    message = found.get(wire.MESSAGE)
    lines = [f"{found.get(wire.ID)} is {states.SHORT.get(str(state), state)}" + (f": {message}" if message else "")]
    holders = found.get(wire.HOLDERS)
    for holder in holders if isinstance(holders, list) else ():
        count = holder.get(wire.SLOTS)
        gives = holder.get(wire.GIVES)
        kept = "needs all of them" if holder.get(wire.ELASTIC) else "holds them until it finishes"
        kind = f"can release {gives} of them while it runs" if gives else kept
        kind = "shares them with other jobs" if holder.get(wire.SHARES) else kind
        lines.append(f"  {holder.get(wire.ID)} holds {count} slot{'' if count == 1 else 's'}: {kind}")
    begins = "continues" if state == states.RUNNING else "starts"
    code, starts, advice = found.get(wire.REASON), found.get(wire.STARTS), found.get(wire.ADVICE)
    if starts:
        lines.append(f"the job {begins} {starts}")
    if advice is not None:
        lines.append(f"{advice}: {_ADVICE.get(str(advice), '').format(begins)}" + (f" ({code})" if code else ""))
    emit(inert("\n".join(lines)))


def cell(item: Mapping[str, Any], column: str) -> str:
    """Return a column of the table, by its name or by the name of a field; `n/a` for neither."""
    state = item.get(wire.STATE)
    special: dict[str, Any] = {
        "submit_user": item.get(wire.CREATOR, item.get("userName")),
        "name": item.get(wire.APP_NAME),
        "type": _TYPES.get(str(item.get(wire.ELASTIC))),
        "state": states.SHORT.get(state, state) if isinstance(state, str) else None,
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
