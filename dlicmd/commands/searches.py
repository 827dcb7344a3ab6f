"""The commands about searches for hyper-parameters."""

from __future__ import annotations

import json
from collections.abc import Callable

from dlicmd.contract.exits import Exit
from dlicmd.render import emit_said, emit_value
from dlicmd.session import Session


def _hpo_start(session: Session) -> int:
    from dlicmd.commands.search_start import start

    start(session)
    return Exit.DONE


def _hpo_get_all(session: Session) -> int:
    from dlicmd.show.searches import show_searches

    show_searches(session.client.searches(session.line.text("--query-args")), session.output)
    return Exit.DONE


def _hpo_get(session: Session) -> int:
    from dlicmd.show.searches import show_searches

    found = session.client.search(session.operand)
    if session.output.columns or session.output.form == "table":
        show_searches([found], session.output)
    else:
        emit_value(found, session.output)
    return Exit.DONE


def _hpo_stop(session: Session) -> int:
    from dlicmd.commands.each import tell

    return tell("Stop hpo", session.operands, session.client.stop_search, session.output)


def _hpo_delete(session: Session) -> int:
    from dlicmd.commands.each import tell

    return tell("Delete hpo", session.operands, session.client.delete_search, session.output)


def _hpo_delete_all(session: Session) -> int:
    emit_said(session.client.delete_searches().text(), session.output, "Searches are deleted")
    return Exit.DONE


def _hpo_restart(session: Session) -> int:
    _show(session, session.client.restart_search(session.operand).text(), f"Search {session.operand} continues")
    return Exit.DONE


def _algorithm_get_all(session: Session) -> int:
    from dlicmd.show.searches import show_algorithms

    show_algorithms(session.client.algorithms(), session.output)
    return Exit.DONE


def _algorithm_get(session: Session) -> int:
    emit_value(session.client.algorithm(session.operand), session.output)
    return Exit.DONE


def _algorithm_delete(session: Session) -> int:
    _show(session, session.client.delete_algorithm(session.operand), f"Algorithm {session.operand} is deleted")
    return Exit.DONE


def _show(session: Session, text: str, otherwise: str) -> None:
    """Print the server's answer: JSON as JSON, any other text unchanged, and `otherwise` for an empty answer."""
    try:
        emit_value(json.loads(text), session.output)
    except (ValueError, RecursionError):
        emit_said(text, session.output, otherwise)


COMMANDS: dict[str, Callable[[Session], int]] = {
    "--hpo-start": _hpo_start,
    "--hpo-get-all": _hpo_get_all,
    "--hpo-get": _hpo_get,
    "--hpo-stop": _hpo_stop,
    "--hpo-restart": _hpo_restart,
    "--hpo-delete": _hpo_delete,
    "--hpo-delete-all": _hpo_delete_all,
    "--hpo-algorithm-get-all": _algorithm_get_all,
    "--hpo-algorithm-get": _algorithm_get,
    "--hpo-algorithm-delete": _algorithm_delete,
}
