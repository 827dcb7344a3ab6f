"""The commands about labels of jobs: tags, notes and favorites."""

from __future__ import annotations

from collections.abc import Sequence

from dlicmd.cli.render import emit, emit_value
from dlicmd.cli.session import Session
from dlicmd.contract import wire
from dlicmd.contract.exits import Exit
from dlicmd.sdk.errors import UsageProblem
from dlicmd.sdk.messages import one_line
from dlicmd.sdk.objects import Labelled

_LACK = "cannot store notes, tags and favorites"
_REMOVE = "--remove"


def tag(session: Session) -> int:
    """Add tags to a job or remove them; without tags, print the labels of the job."""
    exec_id, *tags = session.operands
    is_removal = session.line.flag(_REMOVE)
    if not tags and is_removal:
        raise UsageProblem(f"{_REMOVE} needs tags to remove")
    session.need(wire.EXT_LABELS, _LACK)
    if not tags:
        return _show_labels(session, exec_id)
    return _show(session, session.client.label_execs(
        [exec_id], add=() if is_removal else tags, remove=tags if is_removal else ()))


def note(session: Session) -> int:
    """Write the note of a job or remove it; without a text, print the labels of the job."""
    exec_id, *texts = session.operands
    is_removal = session.line.flag(_REMOVE)
    if len(texts) > 1 or (texts and is_removal):
        raise UsageProblem(f"a note is 1 text: write it in quotes, without {_REMOVE}")
    session.need(wire.EXT_LABELS, _LACK)
    if not texts and not is_removal:
        return _show_labels(session, exec_id)
    return _show(session, session.client.label_execs([exec_id], note="".join(texts)))


def favorite(session: Session) -> int:
    """Make jobs favorites of the user, or no favorites any more."""
    session.need(wire.EXT_LABELS, _LACK)
    ids = list(dict.fromkeys(session.operands))
    return _show(session, session.client.label_execs(ids, favorite=not session.line.flag(_REMOVE)))


def _show_labels(session: Session, exec_id: str) -> int:
    found = session.client.exec(exec_id)
    return _show(session, [Labelled({wire.ID: found.id, wire.TAGS: found.tags, wire.NOTE: found.note,
                                     wire.FAVORITE: bool(found.favorite)})])


def _show(session: Session, found: Sequence[Labelled]) -> int:
    """Print the labels of each job in a line."""
    if session.output.is_data:
        emit_value(found, session.output)
    else:
        emit("\n".join(map(_line, found)))
    return Exit.DONE


def _line(one: Labelled) -> str:
    facts = [f"tags: {', '.join(one.tags) or 'none'}", *([f"note: {one.note}"] if one.note else []),
             *(["favorite"] if one.favorite else [])]
    return one_line(f"{one.id}  {'; '.join(facts)}")
