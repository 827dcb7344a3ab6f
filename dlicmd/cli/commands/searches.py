"""The commands about searches for hyper-parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from dlicmd.cli.commands.each import tell
from dlicmd.cli.config import small_file
from dlicmd.cli.console import aside
from dlicmd.cli.question import confirmed_on_terminal
from dlicmd.cli.render import Output, emit, emit_said, emit_value, scalar, show_rows
from dlicmd.cli.session import Session
from dlicmd.cli.show.progress import bar
from dlicmd.cli.show.recorded import RecordedTable, sub_table
from dlicmd.cli.show.table import table
from dlicmd.contract import wire
from dlicmd.contract.exits import Exit
from dlicmd.contract.reading import objects
from dlicmd.contract.sizes import recorded_size
from dlicmd.sdk import hints
from dlicmd.sdk.errors import ConnectionLost, UsageProblem
from dlicmd.sdk.messages import inert
from dlicmd.sdk.objects import Algorithm, Search
from dlicmd.sdk.transport import Answer, FilePart, Multipart

COLUMNS = ("name", *wire.SEARCH_KEYS)
_INDENT = " " * 8
#: The most bytes of a definition.
_LARGEST = 16 << 20


def start(session: Session) -> int:
    """Submit the search that the command line names, and print the id that the server gives it."""
    from dlicmd.sdk import package  # packing, for this command of searches alone

    definition = _read_definition(session.operand)
    named = session.line.text("--model-dir")
    if named is None:
        raise UsageProblem("--hpo-start: no model folder given; add --model-dir DIR")
    folder = package.check_folder(named)
    say = aside if session.output.is_data else emit
    with ExitStack() as stack:
        parts: list[FilePart] = []
        stack.callback(package.close_all, parts)
        parts.append(package.pack(package.selected(folder), bar))
        say(f"Copying files and directories ...\nContent size: {recorded_size(parts[0].size)}")
        answer = _send(session, parts, json.dumps(definition))
    if session.output.is_data:
        emit_value(answer.json(), session.output)
    else:
        emit(f"Start hypersearch with id: {inert(answer.text()).strip()}")
    return Exit.DONE


def _read_definition(name: str) -> dict[str, Any]:
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
    """Send the search, and return the answer."""
    try:
        with bar("uploading", parts[0].size) as shown:
            return session.client.start_search(Multipart(parts, [(wire.PART_DATA, data)], shown))
    except ConnectionLost as problem:
        told = f"to check whether the server accepted the search: {hints.command('--hpo-get-all')}"
        raise ConnectionLost(f"{problem}; {told}") from problem


def get_all(session: Session) -> int:
    """Print the searches of the user."""
    _show_searches(session.client.searches(session.line.text("--query-args")), session.output)
    return Exit.DONE


def get(session: Session) -> int:
    """Print one search."""
    found = session.client.search(session.operand)
    if session.output.columns or session.output.form == "table":
        _show_searches([found], session.output)
    else:
        emit_value(found, session.output)
    return Exit.DONE


def stop(session: Session) -> int:
    """Stop searches."""
    return tell("Stop hpo", session.operands, session.client.stop_search, session.output)


def delete(session: Session) -> int:
    """Delete searches."""
    return tell("Delete hpo", session.operands, session.client.delete_search, session.output)


def delete_all(session: Session) -> int:
    """Delete all searches of the user, on a terminal after a question."""
    if not confirmed_on_terminal(session, lambda: f"Delete {len(session.client.searches()):,} searches?"):
        return Exit.FAILED
    emit_said(session.client.delete_searches().text(), session.output, "Searches are deleted")
    return Exit.DONE


def restart(session: Session) -> int:
    """Continue a stopped search."""
    text = session.client.restart_search(session.operand).text()
    emit_said(text, session.output, f"Search {session.operand} continues")
    return Exit.DONE


def algorithm_get_all(session: Session) -> int:
    """Print the search algorithms."""
    _show_algorithms(session.client.algorithms(), session.output)
    return Exit.DONE


def algorithm_get(session: Session) -> int:
    """Print one search algorithm."""
    emit_value(session.client.algorithm(session.operand), session.output)
    return Exit.DONE


def algorithm_delete(session: Session) -> int:
    """Delete an installed search algorithm."""
    text = session.client.delete_algorithm(session.operand)
    emit_said(text, session.output, f"Algorithm {session.operand} is deleted")
    return Exit.DONE


def _show_searches(found: Sequence[Search], output: Output) -> None:
    """Print searches; in the table, each search has its experiments below it."""
    if output.is_data or output.is_recorded or output.columns or not found:
        show_rows(found, output, COLUMNS, _cell, _RECORDED)
        return
    head, *lines = _lines(found, COLUMNS)
    emit(head)
    for search, line in zip(found, lines, strict=True):
        below = _lines(search.experiments, wire.EXPERIMENT_KEYS)[1:]
        emit("\n".join([line, *(_INDENT + experiment for experiment in below)]))


def _show_algorithms(found: Sequence[Algorithm], output: Output) -> None:
    """Print search algorithms."""
    show_rows(found, output, wire.ALGORITHM_KEYS, lambda item, name: scalar(item.get(name)),
              RecordedTable(wire.ALGORITHM_KEYS, lambda item, name: item.get(name)))


def _lines(items: Sequence[Mapping[str, Any]], columns: tuple[str, ...]) -> list[str]:
    return table([{name: _cell(item, name) for name in columns} for item in items], columns).split("\n")


def _experiments(search: Mapping[str, Any]) -> Sequence[str]:
    rows = [[item.get(name) for name in wire.EXPERIMENT_KEYS] for item in objects(search.get(wire.EXPERIMENTS))]
    return sub_table(rows, _INDENT) if rows else ()


_RECORDED = RecordedTable(
    COLUMNS, lambda item, column: item.get(wire.SEARCH_NAME if column == "name" else column), below=_experiments)


def _cell(item: Mapping[str, Any], column: str) -> str:
    return scalar(item.get(wire.SEARCH_NAME if column == "name" else column))
