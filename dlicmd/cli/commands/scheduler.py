"""The commands about the scheduler: applications, slots, objects of the cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from dlicmd.cli.commands.each import tell, tell_together
from dlicmd.cli.question import confirmed_on_terminal
from dlicmd.cli.render import emit, emit_value, scalar, show_columns
from dlicmd.cli.session import Session
from dlicmd.cli.show.apps import HISTORY, active, ended, show_applications, show_summary
from dlicmd.cli.show.cluster import show_jobs
from dlicmd.cli.show.table import table
from dlicmd.cli.show.top import headline, sections, slots_of
from dlicmd.contract import wire
from dlicmd.contract.application import identity, is_active
from dlicmd.contract.exits import Exit
from dlicmd.sdk.errors import NoSuchApplication
from dlicmd.sdk.scheduler_calls import MOST_APPLICATIONS

#: The name of the call for `each.tell`.
_STOP = "Stop application"


def app_get_all(session: Session) -> int:
    """Print the pending and running applications."""
    show_applications(session.client, active(session.client, *_part(session)), session.output)
    return Exit.DONE


def app_history_get_all(session: Session) -> int:
    """Print the applications that have ended."""
    show_applications(session.client, ended(session.client, *_part(session)), session.output, HISTORY)
    return Exit.DONE


def _part(session: Session) -> tuple[int, int]:
    """Return the part of a long list to request: its first position and its length."""
    start, length = (session.line.number(name) for name in ("--app-search-start", "--app-search-length"))
    return start or 0, MOST_APPLICATIONS if length is None else length


def app_get(session: Session) -> int:
    """Print one application."""
    try:
        found = [session.client.application(session.operand)]
    except NoSuchApplication as problem:
        if session.output.is_original and not problem.body:
            return Exit.DONE  # the original client prints nothing for an empty list
        raise
    if session.output.columns or session.output.form == "table":
        show_applications(session.client, found, session.output)
    else:
        emit_value(found, session.output)
    return Exit.DONE


def app_stop(session: Session) -> int:
    """Stop applications."""
    return _stop(session, session.operands)


def app_stop_all(session: Session) -> int:
    """Stop all pending and running applications, on a terminal after a question."""
    found = active(session.client, *_part(session))
    if found and not confirmed_on_terminal(session, lambda: f"Stop {len(found):,} pending and running jobs?"):
        return Exit.FAILED
    if not found and not session.output.is_data:
        emit("No result found")

    def has_ended(app_id: str) -> bool:
        return not is_active(session.client.application(app_id))

    return _stop(session, [identity(app) for app in found], has_ended)


def _stop(session: Session, names: Sequence[str], has_ended: Callable[[str], bool] | None = None) -> int:
    """Stop applications, several in one call if the server offers that; the original client sends one call for each.
    Return the exit code. With `has_ended`, an application that has ended is not a failure."""
    client = session.client
    if len(names) > 1 and not session.output.is_original and wire.EXT_STOP_MANY in client.extensions():
        return tell_together(_STOP, client.stop_applications(names), session.output, over_is_done=has_ended is not None)
    return tell(_STOP, names, client.stop_application, session.output, has_ended or (lambda _: False))


def app_analyze(session: Session) -> int:
    """Print a summary of the applications of the last hours."""
    show_summary(session.client, session.output, int(session.operand) if session.operand else None)
    return Exit.DONE


def top(session: Session) -> int:
    """Print the slots once; on a terminal, refresh them in place until Ctrl-C."""
    session.need(wire.EXT_SLOT_VIEW, "does not report its slots")
    view, output = session.client.slot_view(), session.output
    if output.is_data:
        emit_value(view, output)
    elif output.columns:
        show_columns(slots_of(view), output.columns, lambda slot, name: scalar(slot.get(name)))
    elif output.form or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        emit("\n\n".join([headline(view), *(table(part.rows, part.columns) for part in sections(view) if part.rows)]))
    else:
        from dlicmd.cli.show.top_live import watch  # needs rich, for a terminal alone

        watch(view, session.client.impatient().slot_view)
    return Exit.DONE


def pj_get_all(session: Session) -> int:
    """Print the parallel jobs of the scheduler."""
    show_jobs(session.client, session.output)
    return Exit.DONE


def k8s_obj_get_all(session: Session) -> int:
    """Print all objects of a type."""
    emit_value(session.client.kubernetes_objects(session.operand), session.output)
    return Exit.DONE


def k8s_obj_get(session: Session) -> int:
    """Print one object of the cluster."""
    kind, name = session.operands
    emit_value(session.client.kubernetes_object(kind, name), session.output)
    return Exit.DONE
