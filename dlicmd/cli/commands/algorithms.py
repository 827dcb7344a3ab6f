"""The commands about algorithms that search for hyper-parameters."""

from __future__ import annotations

from dlicmd.cli.render import emit_said, emit_value, scalar, show_rows
from dlicmd.cli.session import Session
from dlicmd.cli.show.recorded import RecordedTable
from dlicmd.contract import wire
from dlicmd.contract.exits import Exit


def get_all(session: Session) -> int:
    """Print the search algorithms."""
    show_rows(session.client.algorithms(), session.output, wire.ALGORITHM_KEYS,
              lambda item, name: scalar(item.get(name)),
              RecordedTable(wire.ALGORITHM_KEYS, lambda item, name: item.get(name)))
    return Exit.DONE


def get(session: Session) -> int:
    """Print one search algorithm."""
    emit_value(session.client.algorithm(session.operand), session.output)
    return Exit.DONE


def install(session: Session) -> int:
    """Install a search algorithm from a folder or a packed file."""
    line = session.line
    text = session.client.install_algorithm(
        session.operand, line.text("--name"), conda_home=line.text("--conda-home"),
        conda_env=line.text("--conda-env-name"), log_level=line.text("--log-level"))
    emit_said(text, session.output, f"Algorithm {line.text('--name') or session.operand} is installed")
    return Exit.DONE


def delete(session: Session) -> int:
    """Delete an installed search algorithm."""
    text = session.client.delete_algorithm(session.operand)
    emit_said(text, session.output, session.output.own(f"Algorithm {session.operand} is deleted"))
    return Exit.DONE
