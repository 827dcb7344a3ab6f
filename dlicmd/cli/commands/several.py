"""The verbs that act on several jobs: `stop` and `rm`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dlicmd.cli.commands.newest import is_id, is_search
from dlicmd.cli.console import error
from dlicmd.cli.question import confirmed, counted
from dlicmd.cli.render import emit, emit_value
from dlicmd.cli.session import Session
from dlicmd.contract import states, wire
from dlicmd.contract.exits import Exit
from dlicmd.contract.verbs import ALL, STATE
from dlicmd.sdk.client import Client
from dlicmd.sdk.errors import NoSuchExec, ServerError, UsageProblem
from dlicmd.sdk.messages import inert


def stop_several(session: Session) -> int:
    """Stop the jobs that the verb names, or all that have not ended."""
    return _each(session, "stop", "stopped", session.client.stop_exec,
                 lambda item: not states.is_terminal(str(item.get(wire.STATE))))


def delete_several(session: Session) -> int:
    """Delete the jobs that the verb names, or all."""
    return _each(session, "delete", "deleted", session.client.delete_exec, lambda _: True)


def _each(
    session: Session, what: str, done: str, call: Callable[[str], int], applies: Callable[[Mapping[str, Any]], bool],
) -> int:
    """Run `call` for each selected job, even after a failure, and print the outcomes. Return the exit code."""
    names, listed = _selected(session, applies)
    if not names:
        emit_value([], session.output) if session.output.is_data else emit(f"no jobs to {what}")
        return Exit.DONE
    if len(names) > 1 and not confirmed(session, f"{what.capitalize()} {counted(names, listed)}?"):
        return Exit.FAILED
    code: int = Exit.DONE
    found = []
    for name in names:
        try:
            call(name)
        except ServerError as refused:
            problem = _explained(session.client, name, refused)
            found.append({wire.ID: name, wire.OK: False, wire.MESSAGE: str(problem)})
            error(str(problem), problem.code, problem.exit_code)
            code = problem.exit_code
        else:
            found.append({wire.ID: name, wire.OK: True})
            if not session.output.is_data:
                emit(f"{inert(name)} {done}")
    if session.output.is_data:
        emit_value(found, session.output)
    return code


def _explained(client: Client, name: str, problem: ServerError) -> ServerError:
    """Return the problem with a job, and what to do if the word is the name of a search, or of nothing."""
    if not isinstance(problem, NoSuchExec) or is_id(name):
        return problem
    if is_search(client, name):
        return NoSuchExec(name, problem.status, problem.body, is_search=True)
    return NoSuchExec(name, problem.status, problem.body, nor_search=True)


def _selected(
    session: Session, applies: Callable[[Mapping[str, Any]], bool],
) -> tuple[list[str], Sequence[Mapping[str, Any]]]:
    """Return the ids of the selected jobs, oldest first, and the list of the server if it was needed. Raises
    UsageProblem."""
    wanted = session.line.text(STATE)
    if not session.line.flag(ALL):
        if wanted is not None:
            raise UsageProblem(f"{STATE} is only for {ALL}")
        names = list(dict.fromkeys(session.operands))
        return names, session.client.execs() if len(names) > 1 else []
    try:
        of_state = states.ACTIVE | states.TERMINAL if wanted is None else states.selected(wanted)
    except ValueError as problem:
        raise UsageProblem(f"{STATE}: {inert(str(problem))}") from None
    listed = [item for item in session.client.execs() if applies(item) and item.get(wire.STATE) in of_state]
    return [str(item[wire.ID]) for item in listed if item.get(wire.ID)], listed
