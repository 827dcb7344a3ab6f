"""The commands about the profile of a model."""

from __future__ import annotations

import json

from dlicmd.cli.config.small_file import read
from dlicmd.cli.render import Output, emit, emit_value
from dlicmd.cli.session import Session
from dlicmd.contract import dlim
from dlicmd.contract.dlim_commands import FILE
from dlicmd.contract.exits import Exit
from dlicmd.sdk.errors import UsageProblem
from dlicmd.sdk.messages import inert

#: The most bytes of a file with a profile or a runtime.
_LARGEST = 2**20


def view(session: Session) -> int:
    """Print the profile: as YAML, or with -j as JSON."""
    found = session.client.model_profile(session.operand)
    wants_json = session.line.flag("--json")
    emit_value(found, session.output if session.output.is_data else Output("json" if wants_json else "yaml"))
    return Exit.DONE


def update(session: Session) -> int:
    """Replace the profile by the one in a file."""
    session.client.change_profile(session.operand, object_of(session))
    if session.output.is_data:
        emit_value(session.client.model_profile(session.operand), session.output)
    else:
        emit(dlim.UPDATED)
    return Exit.DONE


def object_of(session: Session) -> dict[str, object]:
    """Return the object in the file of the command line, JSON or YAML. Raises UsageProblem."""
    name = session.line.text(FILE.name) or ""
    content = read("-f", name, _LARGEST)
    import yaml  # JSON is YAML, too

    try:
        found = yaml.safe_load(content)
    except (yaml.YAMLError, UnicodeError, RecursionError, ValueError) as problem:
        mark = getattr(problem, "problem_mark", None)
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise UsageProblem(f"-f {inert(name)}: neither JSON nor YAML{place}") from None
    if not isinstance(found, dict):
        raise UsageProblem(f"-f {inert(name)}: an object with keys is required")
    try:
        json.dumps(found, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as problem:
        raise UsageProblem(f"-f {inert(name)}: a value is not one of JSON ({problem}); quote dates") from None
    return found
