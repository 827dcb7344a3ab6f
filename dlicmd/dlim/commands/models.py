"""The commands about models that exist: list, start, stop, undeploy, README, and why a model does not serve."""

from __future__ import annotations

import sys
import time

from dlicmd.cli import console, question
from dlicmd.cli.render import emit, emit_value, show_columns
from dlicmd.cli.session import Session
from dlicmd.contract import dlim
from dlicmd.contract.dlim_commands import FORCE, TIMEOUT, WAIT
from dlicmd.contract.exits import Exit
from dlicmd.sdk import cancel
from dlicmd.sdk.errors import ServerError, WaitTimeout
from dlicmd.sdk.messages import inert, one_line
from dlicmd.sdk.model_calls import POLL, START_TIMEOUT

_NAME, _URI, _NONE = "NAME", "REST URI", "-"


def list_all(session: Session) -> int:
    """Print the names of the models, and the URLs of those that are started."""
    found = session.client.models()
    if session.output.is_data:
        emit_value(found, session.output)
    elif session.output.columns:
        show_columns(found, session.output.columns, lambda item, name: str(item.get(name, "")))
    else:
        emit(two_columns((_NAME, _URI), [(one.name, one.service_uri or _NONE) for one in found]))
    return Exit.DONE


def two_columns(head: tuple[str, str], rows: list[tuple[str, str]]) -> str:
    """Return rows under their heads, the first column padded with at least 2 blanks, as the original dlim prints
    them."""
    lines = [head, *((one_line(first), one_line(second)) for first, second in rows)]
    width = max(len(first) for first, _ in lines) + 2
    return "\n".join(f"{first:<{width}}{second}" for first, second in lines)


def start(session: Session) -> int:
    """Start a model; with --wait, return when it answers."""
    name = session.operand
    session.client.start_model(name)
    _say(session, dlim.starting(name))
    if session.line.flag(WAIT.name):
        session.client.wait_model(name, seconds_to_wait(session))
    return Exit.DONE


def stop(session: Session) -> int:
    """Stop a model, on a terminal after a question; with --wait, return when its kernels have ended."""
    name = session.operand
    if not agreed_on_terminal(session, f"Stop the model <{name}>?"):
        return Exit.FAILED
    session.client.stop_model(name)
    _say(session, dlim.stopping(name))
    if session.line.flag(WAIT.name):
        _wait_stopped(session, name)
    return Exit.DONE


def undeploy(session: Session) -> int:
    """Delete a stopped model, on a terminal after a question."""
    name, client = session.operand, session.client
    model = client.model(name)
    if model.is_started:
        raise _in_use(409)
    if not agreed_on_terminal(session, f"Delete the model <{name}> with all its revisions?"):
        return Exit.FAILED
    try:
        client.undeploy_model(name)
    except ServerError as problem:
        raise _in_use(problem.status) if problem.code == dlim.IN_USE else problem from None
    if session.output.is_data:
        emit_value({dlim.NAME: name}, session.output)
    else:
        emit(dlim.undeployed(name))
    return Exit.DONE


def readme(session: Session) -> int:
    """Print the README of a model."""
    text = session.client.model_readme(session.operand)
    if session.output.is_data:
        emit_value({dlim.READ_ME: text}, session.output)
    else:
        emit(inert(text).rstrip("\n"))
    return Exit.DONE


def why(session: Session) -> int:
    """Print why a model does not serve, or has fewer kernels than it wants, and what to do."""
    found = session.client.model_why(session.operand)
    if session.output.is_data:
        emit_value(found, session.output)
        return Exit.DONE
    reason = found.message or ("nothing is missing" if found.state == dlim.STARTED else "")
    said = {"state": found.state, "why": reason, "starts": found.starts, "what to do": found.advice}
    emit("\n".join(f"{label + ':':<12}{one_line(text)}" for label, text in said.items() if text))
    return Exit.DONE


def agreed_on_terminal(session: Session, asked: str) -> bool:
    """Return whether the user agrees: with -f, with an answer on the terminal, or without a terminal: scripts are not
    asked."""
    if session.line.flag(FORCE.name) or not question.is_answerable():
        return True
    return question.agreed(asked)


def agreed_in_words(asked: str) -> bool:
    """Print a question of the original dlim, and return whether the next line of standard input says yes. Its end
    means no."""
    sys.stdout.write(asked)
    sys.stdout.flush()
    answer = sys.stdin.readline() if sys.stdin is not None else ""
    if not answer.endswith("\n"):
        sys.stdout.write("\n")
        sys.stdout.flush()
    return answer.strip().lower() in ("y", "yes")


def seconds_to_wait(session: Session) -> float:
    """Return the time limit of --wait in seconds."""
    return float(session.line.number(TIMEOUT.name) or START_TIMEOUT)


def _wait_stopped(session: Session, name: str) -> None:
    """Wait until a model is stopped. Raises WaitTimeout."""
    limit = seconds_to_wait(session)
    end = time.monotonic() + limit
    while session.client.serving(name).status != dlim.DISABLED:
        if time.monotonic() >= end:
            raise WaitTimeout(f"the model '{name}' was not stopped within {limit:g} s and continues to stop")
        cancel.sleep(POLL)


def _say(session: Session, text: str) -> None:
    """Print a recorded sentence; as data, the model."""
    if session.output.is_data:
        emit_value(session.client.model(session.operand), session.output)
    else:
        emit(text)


def _in_use(status: int) -> ServerError:
    console.set_prefix(shown=False)  # automation compares the whole line
    return ServerError(dlim.CANNOT_BE_REMOVED, status, dlim.IN_USE)
