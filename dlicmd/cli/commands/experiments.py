"""The commands about model definitions, hardware specifications and experiments."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dlicmd.cli.config import small_file
from dlicmd.cli.render import emit, emit_value, scalar, show_rows
from dlicmd.cli.session import Session
from dlicmd.cli.show.progress import bar
from dlicmd.contract import wire
from dlicmd.contract.exits import Exit
from dlicmd.contract.reading import objects, words
from dlicmd.sdk.errors import UsageProblem
from dlicmd.sdk.experiment_objects import RunOfExperiment
from dlicmd.sdk.messages import inert, warn

DEFINITION_COLUMNS = (wire.NAME, wire.OWNER, wire.VERSION, wire.FRAMEWORK, wire.COMMAND, wire.SHARED_WITH)
HARDWARE_COLUMNS = (wire.NAME, wire.OWNER, wire.VERSION, wire.USABLE_HERE, wire.DESCRIPTION)
EXPERIMENT_COLUMNS = (wire.NAME, wire.OWNER, wire.VERSION, wire.DEFINITIONS_OF, wire.LAST_RUN)
PART_COLUMNS = (wire.DEFINITION, wire.VERSION, wire.EXEC_ID, wire.STATE, wire.MESSAGE)
#: The most bytes of a file with a definition.
_LARGEST = 1 << 20
_YAML = (".yaml", ".yml")


def definition_get_all(session: Session) -> int:
    """Print the model definitions."""
    show_rows(session.client.definitions(), session.output, DEFINITION_COLUMNS, _cell)
    return Exit.DONE


def definition_get(session: Session) -> int:
    """Print one model definition."""
    emit_value(session.client.definition(session.operand, _version(session)), session.output)
    return Exit.DONE


def definition_save(session: Session) -> int:
    """Save the model definition in a file, with the code of --model-dir."""
    made = session.client.save_definition(_content(session), session.line.text("--model-dir"), bar)
    return _told(session, made, f"Model definition {made.name}, version {made.version}, is saved")


def definition_delete(session: Session) -> int:
    """Delete a model definition."""
    session.client.delete_definition(session.operand)
    return _gone(session, "Model definition")


def hardware_get_all(session: Session) -> int:
    """Print the hardware specifications."""
    show_rows(session.client.hardware_specifications(), session.output, HARDWARE_COLUMNS, _cell)
    return Exit.DONE


def hardware_get(session: Session) -> int:
    """Print one hardware specification."""
    emit_value(session.client.hardware_specification(session.operand, _version(session)), session.output)
    return Exit.DONE


def hardware_save(session: Session) -> int:
    """Save the hardware specification in a file."""
    made = session.client.save_hardware(_content(session))
    return _told(session, made, f"Hardware specification {made.name}, version {made.version}, is saved")


def hardware_delete(session: Session) -> int:
    """Delete a hardware specification."""
    session.client.delete_hardware(session.operand)
    return _gone(session, "Hardware specification")


def experiment_get_all(session: Session) -> int:
    """Print the experiments."""
    show_rows(session.client.experiments(), session.output, EXPERIMENT_COLUMNS, _cell)
    return Exit.DONE


def experiment_get(session: Session) -> int:
    """Print one experiment."""
    emit_value(session.client.experiment(session.operand, _version(session)), session.output)
    return Exit.DONE


def experiment_runs(session: Session) -> int:
    """Print the last runs of an experiment: one line for each exec."""
    found = session.client.experiment_runs(session.operand)
    if session.output.is_data:
        emit_value(found, session.output)
        return Exit.DONE
    rows = [{wire.RUN: run.run, **part} for run in found for part in run.parts]
    show_rows(rows, session.output, (wire.RUN, *PART_COLUMNS), _cell)
    return Exit.DONE


def experiment_save(session: Session) -> int:
    """Save the experiment in a file; with --run, run it."""
    made = session.client.save_experiment(_content(session))
    if session.line.flag("--run"):
        return _show_run(session, session.client.run_experiment(f"{made.owner}/{made.name}"))
    return _told(session, made, f"Experiment {made.name}, version {made.version}, is saved")


def experiment_run(session: Session) -> int:
    """Run an experiment, and print its execs."""
    return _show_run(session, session.client.run_experiment(session.operand, _version(session)))


def experiment_delete(session: Session) -> int:
    """Delete an experiment."""
    session.client.delete_experiment(session.operand)
    return _gone(session, "Experiment")


def _show_run(session: Session, run: RunOfExperiment) -> int:
    """Print a run. Return the exit code of a failure if a model definition has no exec."""
    if session.output.is_data:
        emit_value(run, session.output)
    else:
        show_rows(run.parts, session.output, PART_COLUMNS, _cell)
    if run.warning:
        warn(f"warning: {inert(run.warning)}")
    return Exit.DONE if run.complete else Exit.FAILED


def _told(session: Session, made: Mapping[str, Any], sentence: str) -> int:
    if session.output.is_data:
        emit_value(made, session.output)
    else:
        emit(inert(sentence))
    return Exit.DONE


def _gone(session: Session, what: str) -> int:
    if session.output.is_data:
        emit_value({wire.NAME: session.operand, wire.OK: True}, session.output)
    else:
        emit(f"{what} {inert(session.operand)} is deleted")
    return Exit.DONE


def _version(session: Session) -> int | None:
    return session.line.number("--of-version")


def _content(session: Session) -> dict[str, Any]:
    """Return the object in the JSON or YAML file of the command line. Raises UsageProblem."""
    name, command = session.operand, session.line.command or ""
    if name.lower().endswith(_YAML):
        from dlicmd.sdk.yaml_file import read  # only for this format

        place = read(Path(name))
        found = None if place is None else place.json("the file")
    else:
        text = small_file.read(command, name, _LARGEST)
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as problem:
            where = f" in line {problem.lineno}" if isinstance(problem, json.JSONDecodeError) else ""
            raise UsageProblem(f"{command} {name}: invalid JSON{where}") from None
    if not isinstance(found, dict):
        raise UsageProblem(f"{command} {name}: the file must contain one object, with a 'name'")
    return found


def _shared(value: Any) -> str:
    return value if isinstance(value, str) else ", ".join(map(words, value or ())) or scalar(None)


def _last(value: Any) -> str:
    parts = objects(value.get(wire.PARTS)) if isinstance(value, Mapping) else []
    return ", ".join(words(one.get(wire.STATE)) or words(one.get("code")) for one in parts) or scalar(None)


def _definitions(value: Any) -> str:
    return ", ".join(words(one.get(wire.DEFINITION)) for one in objects(value))


_SHOWN: Mapping[str, Callable[[Any], str]] = {
    wire.SHARED_WITH: _shared, wire.LAST_RUN: _last, wire.DEFINITIONS_OF: _definitions}


def _cell(item: Mapping[str, Any], column: str) -> str:
    return _SHOWN.get(column, scalar)(item.get(column))


