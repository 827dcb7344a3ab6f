"""The commands about execs."""

from __future__ import annotations

from typing import Any

from dlicmd.cli.commands.each import do
from dlicmd.cli.render import emit, emit_said
from dlicmd.cli.session import Session
from dlicmd.cli.show.execs import show_exec, show_execs, show_why
from dlicmd.contract import wire
from dlicmd.contract.argv import ArgvError, CommandLine
from dlicmd.contract.exits import Exit
from dlicmd.sdk.errors import UsageProblem

#: Keys of queries that servers accept for a list of execs.
OF_EXECS = (wire.LIMIT, wire.STATE, wire.SORT_BY, wire.ALL)


def get_all(session: Session) -> int:
    """Print the execs of the user, or of all users."""
    query = session.query(OF_EXECS)
    if session.line.flag("--all-users"):
        query = "&".join(filter(None, (query, f"{wire.ALL}=true")))
    show_execs(session.client.execs(query), session.output)
    return Exit.DONE


def get(session: Session) -> int:
    """Print one exec."""
    show_exec(session.client, session.operand, session.output)
    return Exit.DONE


def why(session: Session) -> int:
    """Print why an exec is pending."""
    show_why(session.client.why(session.operand), session.output)
    return Exit.DONE


def stop(session: Session) -> int:
    """Stop an exec."""
    return do("Stop exec", session.operand, session.client.stop_exec, session.output)


def delete(session: Session) -> int:
    """Delete an exec and its files."""
    return do("Delete exec", session.operand, session.client.delete_exec, session.output)


def deploy(session: Session) -> int:
    """Deploy the trained model of an exec to the server's inference service."""
    asked = _deployment(session.line)
    if session.output.is_original:
        emit(f"{asked}\n{session.operand}")
    text = session.client.deploy_exec(session.operand, asked).text()
    emit_said(text, session.output, f"Deploy exec {session.operand} succeed.",
              indent=4 if session.output.is_recorded else 2)
    return Exit.DONE


def delete_all(session: Session) -> int:
    """Delete all execs of the user."""
    session.client.delete_execs()
    emit_said("", session.output, "Execs are deleted")
    return Exit.DONE


def _deployment(line: CommandLine) -> dict[str, Any]:
    """Return the deployment that a command line requests. Raises ArgvError without a kernel, and UsageProblem for a
    pair that is not KEY=VALUE."""
    if not line.text("--kernel"):
        raise ArgvError("--exec-deploy: no kernel given; add --kernel FILE")
    asked: dict[str, Any] = {name: line.text(f"--{name}") for name in wire.DEPLOYMENT_TEXTS}
    asked |= {wire.ATTRIBUTES: _pairs(line, "--attributes"), wire.ENVIRONMENTS: _pairs(line, "--envs")}
    return {name: value for name, value in asked.items() if value is not None}


def _pairs(line: CommandLine, option: str) -> dict[str, str] | None:
    """Return `KEY=VALUE,...` as a mapping, or None when the option is not given. Only the first `=` of a pair divides
    it."""
    text = line.text(option)
    if text is None:
        return None
    pairs = {}
    for pair in filter(str.strip, text.split(",")):
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise UsageProblem(f"{option}: '{pair}' is not KEY=VALUE")
        pairs[key.strip()] = value
    return pairs
