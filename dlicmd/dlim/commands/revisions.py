"""The commands about revisions and users of a model: traffic, promote, rollback, share."""

from __future__ import annotations

import re

from dlicmd.cli.render import emit, emit_value
from dlicmd.cli.session import Session
from dlicmd.contract.argv import ArgvError
from dlicmd.contract.exits import Exit
from dlicmd.dlim.commands.saved import divided
from dlicmd.sdk.errors import UsageProblem
from dlicmd.sdk.messages import inert

_LARGEST = 1_000_000


def traffic(session: Session) -> int:
    """Divide the requests between revisions."""
    name, *parts = session.operands
    weights: dict[int, int] = {}
    for part in parts:
        match = re.fullmatch(r"([0-9]{1,9})=([0-9]{1,7})%?", part)
        if match is None or int(match[1]) < 1 or int(match[2]) > _LARGEST:
            raise UsageProblem(f"'{inert(part)}' is not REVISION=PART, such as 3=90")
        if int(match[1]) in weights:
            raise UsageProblem(f"revision {match[1]} is given twice")
        weights[int(match[1])] = int(match[2])
    if not any(weights.values()):
        raise UsageProblem("at least 1 revision needs a part that is greater than 0")
    session.client.model_traffic(name, weights)
    total = sum(weights.values())
    told = ", ".join(f"{weight / total:.0%} to revision {number}" for number, weight in weights.items())
    return _done(session, f"Requests for {inert(name)} go {told}")


def promote(session: Session) -> int:
    """Send all requests to a revision, or promote a saved model to a space."""
    name, revision, space = session.operand, session.line.number("--revision"), session.line.text("--space")
    if (revision is None) == (space is None):
        raise ArgvError("dlim model promote needs --revision N or --space SPACE; for example: "
                        "dlim model promote digits --revision 4")
    if space is not None:
        name, version = divided(name)
        saved = session.client.promote_saved(name, space, version)
        if session.output.is_data:
            emit_value(saved, session.output)
        else:
            emit(f"Saved model <{inert(name)}> is promoted to the space {inert(space)}")
        return Exit.DONE
    session.client.promote_revision(name, revision or 0)
    return _done(session, f"All requests for {inert(name)} go to revision {revision}")


def rollback(session: Session) -> int:
    """Send all requests to the revision that had them before."""
    session.client.rollback_model(session.operand)
    return _done(session, f"All requests for {inert(session.operand)} go to the previous revision")


def share(session: Session) -> int:
    """Let other users send requests: the named ones, all, or none."""
    name, *users = session.operands
    everybody = session.line.flag("--all")
    if everybody and users:
        raise ArgvError("give users or --all, not both")
    session.client.share_model(name, True if everybody else users)
    told = "all users" if everybody else ", ".join(map(inert, users)) or "no other user"
    return _done(session, f"{inert(name)} is shared with {told}")


def _done(session: Session, text: str) -> int:
    """Print what was done; as data, the model."""
    if session.output.is_data:
        emit_value(session.client.model(session.operand), session.output)
    else:
        emit(text)
    return Exit.DONE
