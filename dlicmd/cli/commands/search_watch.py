"""The wait for the end of a search."""

from __future__ import annotations

import sys
from typing import Any

from dlicmd.cli.render import emit_value
from dlicmd.cli.session import Session
from dlicmd.cli.show import search as show
from dlicmd.contract import wire
from dlicmd.contract.exits import Exit
from dlicmd.sdk import hints
from dlicmd.sdk.client import Client
from dlicmd.sdk.errors import DlicmdError, UsageProblem
from dlicmd.sdk.experiments import clock_for, watch
from dlicmd.sdk.messages import debug, info
from dlicmd.sdk.search_objects import Search


def follow(session: Session, name: str) -> int:
    """Follow a search or wait for it, as the command line says, and report how it ended. Return the exit code."""
    line, output = session.line, session.output
    if line.text("--junit") is not None:
        raise UsageProblem("--junit reports about jobs; for a search, use -o json")
    silent = not (line.command == "--follow" or line.flag("--follow"))
    view = None if silent else _view(session, name)
    found = Search({wire.SEARCH_NAME: name})
    try:
        for found in watch(session.client, name, clock_for(name, line.number("--wait-timeout"))):
            if view is not None:
                view.show(found)
    except KeyboardInterrupt:
        if view is not None:
            view.close()
        back = f"{hints.command('--follow', name)}, or {hints.command('--hpo-get', name)}"
        info(f"detached; {name} continues. Come back with: {back}")
        if output.is_data:
            emit_value(found, output)
        return Exit.INTERRUPTED
    except DlicmdError:
        if output.is_data and found.state:
            emit_value(found, output)
        raise
    finally:
        if view is not None:
            view.close()
    if output.is_data:
        emit_value(found, output)
    code = show.exit_code(found)
    if not silent or code != Exit.DONE:
        told = show.next_commands(found, best_has_files(session.client, found))
        info(f"{show.outcome(found)}; next: {'; '.join(told)}")
    return code


def best_has_files(client: Client, found: Search) -> bool:
    """Return whether the job of the best experiment has files to fetch; True if the server does not say."""
    best = found.best
    if not found.has_ended or best is None or not best.app_id:
        return True
    try:
        return bool(client.impatient().exec(best.app_id).get(wire.HAS_RESULT, True))
    except DlicmdError as problem:
        debug(f"no job {best.app_id}: {problem}")
        return False


def _view(session: Session, name: str) -> Any:
    if sys.stdout.isatty() and not session.output.is_data:
        from dlicmd.cli.show.search_live import LiveSearch  # needs rich, for a terminal alone

        return LiveSearch(name)
    return show.PlainSearch(data_on_stdout=session.output.is_data)
