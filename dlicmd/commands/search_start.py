"""`--hpo-start`: send the definition of a search and a model folder in one request."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any

from dlicmd import hints, package
from dlicmd.config import small_file
from dlicmd.console import aside, inert
from dlicmd.contract import wire
from dlicmd.contract.sizes import show_size
from dlicmd.errors import ConnectionLost, UsageProblem
from dlicmd.render import emit, emit_value
from dlicmd.rest.body import FilePart, Multipart
from dlicmd.rest.transport import Answer
from dlicmd.session import Session
from dlicmd.show.progress import bar

_LARGEST = 16 << 20


def start(session: Session) -> None:
    """Submit the search that the command line names, and print the id that the server gives it."""
    definition = read_definition(session.operand)
    named = session.line.text("--model-dir")
    if named is None:
        raise UsageProblem("--hpo-start: no model folder given; add --model-dir DIR")
    folder = package.check_folder(named)
    say = aside if session.output.is_data else emit
    with ExitStack() as stack:
        parts: list[FilePart] = []
        stack.callback(package.close_all, parts)
        with bar("packing") as shown:
            parts.append(package.pack(folder, None, shown))
        say(f"Copying files and directories ...\nContent size: {show_size(parts[0].size)}")
        answer = _send(session, parts, json.dumps(definition))
    if session.output.is_data:
        emit_value(answer.json(), session.output)
    else:
        emit(f"Start hypersearch with id: {inert(answer.text()).strip()}")


def read_definition(name: str) -> dict[str, Any]:
    """Return the definition in a JSON file. Raises UsageProblem when the file holds none."""
    text = small_file.read("--hpo-start", name, _LARGEST)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as problem:
        where = f" in line {problem.lineno}" if isinstance(problem, json.JSONDecodeError) else ""
        raise UsageProblem(f"--hpo-start {name}: invalid JSON{where}") from None
    if not isinstance(found, dict):
        raise UsageProblem(f"--hpo-start {name}: the definition of a search must be a JSON object")
    return found


def _send(session: Session, parts: list[FilePart], data: str) -> Answer:
    """Send the search, and return the answer, read to its end."""
    try:
        with bar("uploading", parts[0].size) as shown:
            answer = session.client.start_search(Multipart(parts, [(wire.PART_DATA, data)], shown))
            answer.hold()
            return answer
    except ConnectionLost as problem:
        told = f"to check whether the server accepted the search: {hints.command('--hpo-get-all')}"
        raise ConnectionLost(f"{problem}; {told}") from problem
