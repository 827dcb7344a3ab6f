"""The commands about searches for hyper-parameters."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dlicmd.cli.commands.each import tell
from dlicmd.cli.manner import Manner
from dlicmd.cli.question import confirmed_on_terminal
from dlicmd.cli.render import Output, emit, emit_said, emit_value, scalar, show_rows
from dlicmd.cli.session import Session
from dlicmd.cli.show.recorded import RecordedTable, sub_table
from dlicmd.cli.show.table import table, terminal_width
from dlicmd.contract import wire
from dlicmd.contract.exits import Exit
from dlicmd.contract.reading import objects
from dlicmd.sdk.errors import ServerError, Unreachable
from dlicmd.sdk.messages import debug, inert
from dlicmd.sdk.search_objects import Search
from dlicmd.sdk.transport import Answer

COLUMNS = ("name", *wire.SEARCH_KEYS)
_INDENT = " " * 8


def get_all(session: Session) -> int:
    """Print the searches of the user: for people a line for each, else with their experiments."""
    found, output = session.client.searches(session.line.text("--query-args")), session.output
    if found and output.manner is Manner.TERMINAL and not (output.form or output.columns):
        from dlicmd.cli.show.search import listing  # only for people

        emit("\n".join(listing(found, terminal_width())))
    else:
        _show_searches(found, output)
    return Exit.DONE


def get(session: Session) -> int:
    """Print one search: for people as a page, for scripts as recorded. With --follow or --wait, watch it."""
    line, output = session.line, session.output
    if line.flag("--follow") or line.flag("--wait"):
        return _follow(session)
    found = session.client.search(session.operand)
    if output.columns or output.form == "table":
        _show_searches([found], output)
    elif output.form or output.manner is not Manner.TERMINAL:
        emit_value(found, output)
    else:
        from dlicmd.cli.commands.search_watch import best_has_files
        from dlicmd.cli.show.search import page  # only for people

        width = terminal_width() if sys.stdout.isatty() else None
        there = best_has_files(session.client, found)
        emit("\n".join(page(found, _importances(session, found), width, there)))
    return Exit.DONE


def _importances(session: Session, found: Search) -> dict[str, float]:
    """Return the importances of the parameters; none for servers without this call."""
    if found.best is None:
        return {}
    try:
        return session.client.impatient().importances(found.name)
    except (ServerError, Unreachable) as problem:
        debug(f"no importances of {found.name}: {problem}")
        return {}


def _follow(session: Session) -> int:
    from dlicmd.cli.commands.search_watch import follow  # only to watch

    return follow(session, session.operand)


def why(session: Session) -> int:
    """Print why a search is in its state."""
    from dlicmd.cli.show.search import reasons  # few commands need it

    found, output = session.client.search(session.operand), session.output
    if output.is_data:
        emit_value({wire.ID: found.name, wire.STATE: found.state, wire.MESSAGE: found.message}, output)
    else:
        emit("\n".join(reasons(found)))
    return Exit.DONE


def stop(session: Session) -> int:
    """Stop searches; with --force, at once."""
    def call(name: str) -> Answer:
        try:
            return session.client.stop_search(name, session.line.flag("--force"))
        except ServerError as problem:
            if session.line.verb is None or problem.code != "search.ended":
                raise
            over = f"{name} had already ended: {session.client.search(name).state}"
            raise ServerError(over, problem.status, problem.code, problem.body) from None

    return _each(session, "Stop hpo", "stopped", call)


def delete(session: Session) -> int:
    """Delete searches."""
    return _each(session, "Delete hpo", "deleted", session.client.delete_search)


def _each(session: Session, what: str, done: str, call: Callable[[str], Answer]) -> int:
    """Run `call` for each search, and print the recorded sentences; for a verb, a line of its own."""
    if session.line.verb is None:
        return tell(what, session.operands, call, session.output)
    call(session.operand)
    if session.output.is_data:
        emit_value([{wire.ID: session.operand, wire.OK: True}], session.output)
    else:
        emit(f"{inert(session.operand)} {done}")
    return Exit.DONE


def delete_all(session: Session) -> int:
    """Delete all searches of the user, on a terminal after a question."""
    if not confirmed_on_terminal(session, lambda: f"Delete {len(session.client.searches()):,} searches?"):
        return Exit.FAILED
    emit_said(session.client.delete_searches().text(), session.output, session.output.own("Searches are deleted"))
    return Exit.DONE


def restart(session: Session) -> int:
    """Continue a stopped search."""
    text = session.client.restart_search(session.operand).text()
    watches = session.line.flag("--follow") or session.line.flag("--wait")
    if not watches:
        emit_said(text, session.output, session.output.own(f"Search {session.operand} continues"))
    return _follow(session) if watches else Exit.DONE


def _show_searches(found: Sequence[Search], output: Output) -> None:
    """Print searches; in the table, each search has its experiments below it."""
    if output.is_data or output.is_recorded or output.columns or not found:
        show_rows(found, output, COLUMNS, _cell, _RECORDED)
        return
    head, *lines = _lines(found, COLUMNS)
    emit(head)
    for search, line in zip(found, lines, strict=True):
        below = _lines(search.experiments, wire.EXPERIMENT_KEYS)[1:]
        emit("\n".join([line, *(_INDENT + experiment for experiment in below)]))


def _lines(items: Sequence[Mapping[str, Any]], columns: tuple[str, ...]) -> list[str]:
    return table([{name: _cell(item, name) for name in columns} for item in items], columns).split("\n")


def _experiments(search: Mapping[str, Any]) -> Sequence[str]:
    rows = [[item.get(name) for name in wire.EXPERIMENT_KEYS] for item in objects(search.get(wire.EXPERIMENTS))]
    return sub_table(rows, _INDENT) if rows else ()


_RECORDED = RecordedTable(
    COLUMNS, lambda item, column: item.get(wire.SEARCH_NAME if column == "name" else column), below=_experiments)


def _cell(item: Mapping[str, Any], column: str) -> str:
    return scalar(item.get(wire.SEARCH_NAME if column == "name" else column))
