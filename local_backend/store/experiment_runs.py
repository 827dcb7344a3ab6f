"""Queries on runs of experiments, and on the execs of each. Each takes the connection of a transaction (see
database.py) and does one thing. Times are epoch seconds."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update

from local_backend.store.schema import experiment_run_parts, experiment_runs
from local_backend.store.team_objects import next_number


@dataclass(frozen=True)
class RunPartRow:
    """One row of `experiment_run_parts`, with the same names."""

    run: int
    position: int
    label: str
    version: int
    exec_id: str | None
    code: str | None
    message: str | None


@dataclass(frozen=True)
class ExperimentRunRow:
    """One row of `experiment_runs`, and its parts in order."""

    number: int
    object: int
    version: int
    creator: str
    create_time: float
    parts: Sequence[RunPartRow]


class PartTaken(Exception):
    """The part of the run has an exec already."""


_COLUMNS = [experiment_runs.c[name] for name in ("number", "object", "version", "creator", "create_time")]
_PART = [experiment_run_parts.c[field.name] for field in fields(RunPartRow)]


def begin(  # noqa: PLR0917
    connection: Connection, number: int, version: int, creator: str, key: str | None, parts: Sequence[tuple[str, int]]
) -> ExperimentRunRow:
    """Insert a run of an experiment. `parts` are the labels and versions of its model definitions."""
    run = next_number(connection, "experiment run")
    connection.execute(insert(experiment_runs).values(
        number=run, object=number, version=version, creator=creator, run_key=key, create_time=time.time()))
    for position, (label, of) in enumerate(parts):
        connection.execute(insert(experiment_run_parts).values(run=run, position=position, label=label, version=of))
    made = get(connection, run)
    assert made is not None
    return made


def get(connection: Connection, run: int) -> ExperimentRunRow | None:
    """Return a run; None if it does not exist."""
    found = connection.execute(select(*_COLUMNS).where(experiment_runs.c.number == run)).first()
    return None if found is None else _run(found, _parts(connection, [run]))


def of_key(connection: Connection, number: int, creator: str, key: str) -> ExperimentRunRow | None:
    """Return the run that a user began with this idempotency key; None if it does not exist."""
    query = select(experiment_runs.c.number).where(
        experiment_runs.c.object == number, experiment_runs.c.creator == creator, experiment_runs.c.run_key == key)
    run = connection.execute(query).scalar()
    return None if run is None else get(connection, run)


def of_object(
    connection: Connection, number: int, creator: str | None, most: int | None = None
) -> list[ExperimentRunRow]:
    """Return the last `most` runs of an experiment that a user began (None: that all users began), newest first."""
    query = select(*_COLUMNS).where(experiment_runs.c.object == number).order_by(experiment_runs.c.number.desc())
    if creator is not None:
        query = query.where(experiment_runs.c.creator == creator)
    rows = connection.execute(query if most is None else query.limit(most)).all()
    parts = _parts(connection, [row.number for row in rows])
    return [_run(row, parts) for row in rows]


def of_exec(connection: Connection, exec_id: str) -> ExperimentRunRow | None:
    """Return the run that an exec is a part of; None if it is a part of none."""
    query = select(experiment_run_parts.c.run).where(experiment_run_parts.c.exec_id == exec_id)
    run = connection.execute(query).scalar()
    return None if run is None else get(connection, run)


def repeat(connection: Connection, before: str, exec_id: str, creator: str) -> None:
    """If the exec `before` is a part of a run, insert a new run of only this part, with the exec `exec_id`."""
    query = select(experiment_run_parts.c.label, experiment_run_parts.c.version).where(
        experiment_run_parts.c.exec_id == before)
    part, run = connection.execute(query).first(), of_exec(connection, before)
    if part is not None and run is not None:
        made = begin(connection, run.object, run.version, creator, None, [(part.label, part.version)])
        take(connection, made.parts[0], exec_id)


def take(connection: Connection, part: RunPartRow, exec_id: str) -> None:
    """Note the exec of a part. Raises PartTaken if the part has one."""
    this = (experiment_run_parts.c.run == part.run, experiment_run_parts.c.position == part.position)
    done = connection.execute(update(experiment_run_parts).where(
        *this, experiment_run_parts.c.exec_id.is_(None)).values(exec_id=exec_id, code=None, message=None))
    if not done.rowcount:
        raise PartTaken


def refuse(connection: Connection, part: RunPartRow, code: str, message: str) -> None:
    """Note why no exec was made of a part."""
    connection.execute(update(experiment_run_parts).where(
        experiment_run_parts.c.run == part.run, experiment_run_parts.c.position == part.position,
        experiment_run_parts.c.exec_id.is_(None)).values(code=code, message=message))


def remove(connection: Connection, number: int) -> None:
    """Remove all runs of an experiment. Their execs stay."""
    runs = select(experiment_runs.c.number).where(experiment_runs.c.object == number)
    connection.execute(delete(experiment_run_parts).where(experiment_run_parts.c.run.in_(runs)))
    connection.execute(delete(experiment_runs).where(experiment_runs.c.object == number))


def _run(found: Row[Any], parts: Mapping[int, Sequence[RunPartRow]]) -> ExperimentRunRow:
    number, of, version, creator, begun = tuple(found)
    return ExperimentRunRow(number, of, version, creator, begun, parts.get(number, ()))


def _parts(connection: Connection, runs: Collection[int]) -> dict[int, list[RunPartRow]]:
    found: dict[int, list[RunPartRow]] = {}
    query = select(*_PART).where(experiment_run_parts.c.run.in_(runs)).order_by(experiment_run_parts.c.position)
    for row in connection.execute(query) if runs else ():
        part = RunPartRow(*row)
        found.setdefault(part.run, []).append(part)
    return found
