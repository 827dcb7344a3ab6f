"""Waiting for execs and applications: `--follow`, `--wait` and `--app-wait`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dlicmd.cli.console import aside
from dlicmd.cli.render import emit, emit_value
from dlicmd.cli.session import Session
from dlicmd.cli.show.apps import cell, recorded_cell
from dlicmd.cli.show.execs import recorded_keys
from dlicmd.cli.show.recorded import Cell, cell_text
from dlicmd.cli.show.views import Plain, View, last_words, outcome
from dlicmd.contract import states, wire
from dlicmd.contract.exits import Exit
from dlicmd.sdk import hints
from dlicmd.sdk.client import Client
from dlicmd.sdk.errors import Denied, NoSuchExec, Unreachable, WaitTimeout
from dlicmd.sdk.follow import Clock, patiently, wait
from dlicmd.sdk.follow import watch as news
from dlicmd.sdk.messages import inert, info
from dlicmd.sdk.objects import Application, Exec, News

#: Seconds between two polls of an application: at first, and at most.
POLL_FIRST, POLL_LAST = 0.5, 10.0
_COLUMNS, _GAP = ("state", "age"), "    "


def watch(session: Session) -> int:
    """Follow an exec or a search, or wait for it, until it has ended."""
    try:
        return follow_to_end(session, session.operand)
    except NoSuchExec:
        from dlicmd.cli.commands.newest import is_search  # only for a name that no exec has
        from dlicmd.cli.commands.search_watch import follow

        if not is_search(session.client, session.operand):
            raise
        return follow(session, session.operand)


def follow_to_end(session: Session, exec_id: str) -> int:
    """Follow an exec or wait for it, as the command line says, and report how it ended. Return the exit code."""
    silent = not (session.line.command == "--follow" or session.line.flag("--follow"))
    clock = Clock(exec_id, session.line.number("--wait-timeout"))
    view = None if silent else _view(session, exec_id)
    try:
        client = session.client
        found = wait(client, exec_id, clock) if view is None else _show(news(client, exec_id, clock), view)
    except KeyboardInterrupt:
        if view is not None:
            view.close()
        back = f"{hints.command('--follow', exec_id)}, or {hints.command('--exec-get', exec_id)}"
        info(f"detached; {exec_id} continues. Come back with: {back}")
        _tell_what_goes_on(session)
        return Exit.INTERRUPTED
    except Denied as problem:
        if problem.status != 401:
            raise
        back = hints.command("--wait" if silent else "--follow", exec_id)
        raise Denied(f"{str(problem).rstrip('.')}; {exec_id} continues: {back}", problem.status, problem.code,
                     problem.body) from None
    except WaitTimeout:
        session.watched.update(session.client.exec(exec_id))
        _tell_what_goes_on(session)
        raise
    except Unreachable:
        _tell_what_goes_on(session)
        raise
    finally:
        if view is not None:
            view.close()
    session.watched.update(found)
    code = exit_code(found, session.line.flag("--pass-exit-code"))
    if session.output.is_data:
        emit_value(_shown(session, found), session.output)
    if not silent or code != Exit.DONE:
        info(last_words(found, exec_id) if session.line.verb is None else _leading_on(found, exec_id))
    return code


def _leading_on(found: Exec, exec_id: str) -> str:
    """Return how an exec ended, and what a user of the verbs may do next."""
    from dlicmd.cli.show.page import next_commands  # only after a verb

    return f"{outcome(found, exec_id).removesuffix('.')}; next: {'; '.join(next_commands(found))}"


def _tell_what_goes_on(session: Session) -> None:
    """Print the last known state of the exec, so that a program can return to it by its id."""
    if session.output.is_data and session.watched:
        emit_value(_shown(session, session.watched), session.output)


def _shown(session: Session, found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an exec with the keys that `get`, or `--exec-get`, shows of it."""
    return found if session.line.verb is not None else recorded_keys(found)


def _view(session: Session, exec_id: str) -> View:
    if sys.stdout.isatty() and not session.output.is_data:
        from dlicmd.cli.show.live import LiveView  # needs rich, for a terminal alone

        return LiveView(exec_id)
    return Plain(data_on_stdout=session.output.is_data)


def _show(source: Iterator[News], view: View) -> Exec:
    """Show each item, and return the exec of the last one."""
    found = Exec({})
    for one in source:
        found = one.exec
        if not found.is_over:
            view.state(found)
        for line in one.lines:
            view.line(line.text, line.task, line.stream)
        if found.is_over:
            view.state(found)
    return found


def exit_code(found: Exec | Application, pass_exit_code: bool) -> int:
    """Return dlicmd's exit code for an exec or application that has ended."""
    own = found.get(wire.EXIT_CODE)
    if found.state == states.FINISHED:
        return Exit.DONE
    if found.reason == wire.NEVER_SCHEDULABLE:
        return Exit.NEVER_SCHEDULABLE
    if found.state == states.KILLED:
        return Exit.JOB_KILLED
    if pass_exit_code and isinstance(own, int) and not isinstance(own, bool) and own % 256:
        return own % 256
    return Exit.JOB_ERROR


def app_wait(session: Session) -> int:
    """Print the state of an application repeatedly until it has ended."""
    app_id, output = session.operand, session.output
    clock = Clock(app_id, session.line.number("--wait-timeout"), "--app-wait")
    shown = recorded_cell if output.is_recorded else cell
    found = _wait_for(session.client, app_id, clock, aside if output.is_data else emit, shown)
    if output.is_data:
        emit_value(found, output)
    code = exit_code(found, session.line.flag("--pass-exit-code"))
    if code != Exit.DONE:
        why = f": {found[wire.MESSAGE]}" if found.get(wire.MESSAGE) else ""
        info(inert(f"{app_id} ended {found.get(wire.STATE)}{why}"))
    return code


def _wait_for(
    client: Client, app_id: str, clock: Clock, tell: Callable[[str], None], shown: Cell,
) -> Application:
    """Wait until an application has ended, and return it. Each poll passes a line of cells `shown` to `tell`.

    Raises WaitTimeout, NoSuchApplication, Unreachable. A server that becomes unreachable after the first answer is
    tried again.
    """
    found = client.application(app_id)
    client = client.impatient()
    pause = POLL_FIRST
    while True:
        tell(_GAP.join((inert(app_id), *(cell_text(shown(found, column)) for column in _COLUMNS))))
        if found.is_over:
            return found
        clock.sleep(pause)
        pause = min(POLL_LAST, pause * 2)
        found = patiently(clock, lambda: client.application(app_id))
