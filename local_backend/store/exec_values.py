"""Queries on the values of execs by name: the parameters of their programs, from the submission on, and the last values
of their metrics, from the end of each attempt on. Each takes the connection of a transaction (see database.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, delete, func, insert, or_, select, union_all

from local_backend import run_values
from local_backend.run_values import METRIC, PARAMETER, ValueName
from local_backend.store.schema import exec_values
from local_backend.workload import Program

#: The number of the exec.
exec_number = exec_values.c.number


def add_parameters(connection: Connection, number: int, program: Program) -> None:
    """Store the parameters of a new exec."""
    _insert(connection, run_values.rows(number, PARAMETER, run_values.parameters(program)))


def replace_metrics(connection: Connection, number: int, progress: Mapping[str, Any]) -> None:
    """Store the metrics of the progress of an exec, instead of those of an earlier attempt."""
    connection.execute(delete(exec_values).where(exec_number == number, exec_values.c.kind == METRIC))
    _insert(connection, run_values.rows(number, METRIC, run_values.with_main(run_values.metrics(progress))))


def forget(connection: Connection, number: int) -> None:
    """Delete the values of an exec."""
    connection.execute(delete(exec_values).where(exec_number == number))


def _insert(connection: Connection, rows: list[dict[str, Any]]) -> None:
    if rows:
        connection.execute(insert(exec_values), rows)


def compared(name: ValueName, operator: str, limit: float) -> Select[Any]:
    """Build a query for the numbers of the execs whose value fits. Without a kind, the metric of this name counts, and
    for an exec without such a metric, its parameter."""
    if name.kind:
        return _fitting(name, operator, limit)
    metric, parameter = (ValueName(kind, name.name) for kind in (METRIC, PARAMETER))
    others = _fitting(parameter, operator, limit).where(exec_number.not_in(select(exec_number).where(_alike(metric))))
    both = union_all(_fitting(metric, operator, limit), others).subquery()
    return select(both.c.number)


def equal(name: ValueName, wanted: str) -> Select[Any]:
    """Build a query for the numbers of the execs that have this value: an equal number, or a text that is equal in any
    case of letters. Without a kind, both a metric and a parameter count."""
    number = run_values.amount(wanted)
    text = func.lower(exec_values.c.text) == wanted.lower()[: run_values.LONGEST_TEXT]
    fits = text if number is None else exec_values.c.value == number
    kinds = (name.kind,) if name.kind else run_values.KINDS
    return select(exec_number).where(or_(*(_alike(ValueName(kind, name.name)) for kind in kinds)), fits)


def _fitting(name: ValueName, operator: str, limit: float) -> Select[Any]:
    fits: ColumnElement[bool] = exec_values.c.value.op(operator, is_comparison=True)(limit)
    return select(exec_number).where(_alike(name), fits)


def _alike(name: ValueName) -> ColumnElement[bool]:
    """Return the condition that a value has this name, in any case of letters."""
    return and_(exec_values.c.kind == name.kind, exec_values.c.key == run_values.key(name.name))


def having(name: ValueName) -> Select[Any]:
    """Build a query for the numbers of the execs that have a value of exactly this name."""
    return select(exec_number).where(_alike(name), exec_values.c.name == name.name)


def in_order(name: ValueName, descending: bool) -> Select[Any]:
    """Build a query for the numbers of the execs with this value, in its order: numbers before texts; of equal values,
    the older exec first."""
    columns = (exec_values.c.value, exec_values.c.text)
    order = ((column.desc() if descending else column).nulls_last() for column in columns)
    return having(name).order_by(*order, exec_number)


def names(connection: Connection, of: Select[Any]) -> dict[ValueName, int]:
    """Return the names of the values of these execs with the number of execs that have each, the most frequent
    first."""
    found = exec_values.c
    query = select(found.kind, found.name, func.count()).where(exec_number.in_(of)).group_by(found.kind, found.name)
    counted = [(ValueName(str(kind), str(name)), int(count)) for kind, name, count in connection.execute(query)]
    return dict(sorted(counted, key=lambda one: (-one[1], one[0])))


def spellings(connection: Connection, name: str, of: Select[Any]) -> list[ValueName]:
    """Return the names of values of these execs that differ from a name only in the case of letters; metrics first."""
    found = exec_values.c
    query = select(found.kind, found.name).where(
        found.kind.in_(run_values.KINDS), found.key == run_values.key(name), exec_number.in_(of)).distinct()
    return sorted(ValueName(str(kind), str(one)) for kind, one in connection.execute(query))
