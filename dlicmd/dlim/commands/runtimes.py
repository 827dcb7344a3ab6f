"""The commands about runtimes: the environments in which kernels run."""

from __future__ import annotations

from dlicmd.cli.render import emit, emit_value, show_columns
from dlicmd.cli.session import Session
from dlicmd.contract import dlim
from dlicmd.contract.exits import Exit
from dlicmd.dlim.commands.models import agreed_on_terminal, two_columns
from dlicmd.dlim.commands.profile import object_of
from dlicmd.sdk.errors import NoSuchObject, UsageProblem
from dlicmd.sdk.messages import inert


def list_all(session: Session) -> int:
    """Print the runtimes."""
    found = session.client.runtimes()
    if session.output.is_data:
        emit_value(found, session.output)
    elif session.output.columns:
        show_columns(found, session.output.columns, lambda item, name: str(item.get(name, "")))
    else:
        emit(two_columns(("NAME", "DESCRIPTION"), [(one.name, one.description or "-") for one in found]))
    return Exit.DONE


def view(session: Session) -> int:
    """Print a runtime."""
    try:
        emit_value(session.client.runtime(session.operand), session.output)
    except NoSuchObject as problem:
        raise _missing(session, problem) from None
    return Exit.DONE


def create(session: Session) -> int:
    """Create the runtime that a file describes."""
    runtime = object_of(session)
    name = runtime.get(dlim.TYPE)
    if not isinstance(name, str) or not name:
        raise UsageProblem(f"-f: the key '{dlim.TYPE}' with the name of the runtime is missing")
    session.client.create_runtime(runtime)
    _say(session, name, f"Runtime <{inert(name)}> is created successfully")
    return Exit.DONE


def update(session: Session) -> int:
    """Replace a runtime by the one that a file describes."""
    try:
        session.client.change_runtime(session.operand, object_of(session))
    except NoSuchObject as problem:
        raise _missing(session, problem) from None
    _say(session, session.operand, f"Runtime <{session.operand}> is updated successfully")
    return Exit.DONE


def delete(session: Session) -> int:
    """Delete a runtime, on a terminal after a question."""
    if not agreed_on_terminal(session, f"Delete the runtime <{session.operand}>?"):
        return Exit.FAILED
    try:
        session.client.delete_runtime(session.operand)
    except NoSuchObject as problem:
        raise _missing(session, problem) from None
    _say(session, session.operand, f"Runtime <{session.operand}> is deleted successfully")
    return Exit.DONE


def _missing(session: Session, problem: NoSuchObject) -> NoSuchObject:
    return NoSuchObject(dlim.no_runtime(session.operand), problem.status, problem.code, problem.body)


def _say(session: Session, name: str, text: str) -> None:
    if session.output.is_data:
        emit_value({dlim.TYPE: name}, session.output)
    else:
        emit(text)
