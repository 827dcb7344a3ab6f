"""The values of execs: their parameters and the last values of their metrics, which replace two columns."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

from local_backend import run_values
from local_backend.workload import Workload

revision = "0017"
down_revision = "0016"

#: Execs that are read together.
_TOGETHER = 500


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "exec_values",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("kind", sa.String(10), primary_key=True),
        sa.Column("name", sa.String(100), primary_key=True),
        sa.Column("key", sa.String(100), nullable=False),
        sa.Column("value", sa.Float),
        sa.Column("text", sa.String(100)),
        sqlite_with_rowid=False,
    )
    _fill(op.get_bind())
    op.create_index("exec_values_by_name", "exec_values", ["kind", "key", "name", "value", "text", "number"])
    op.drop_index("execs_listed", "execs")
    op.drop_column("execs", "loss")
    op.drop_column("execs", "accuracy")
    op.create_index("execs_listed", "execs", [
        "kind", "deleted", "creator", "state", "app_name", "framework", "create_time", "start_time", "end_time",
        "num_worker", "parent", "number", "id",
    ])


def _fill(connection: sa.Connection) -> None:
    """Derive the values of each exec, in parts: there may be many execs."""
    execs = sa.table("execs", *map(sa.column, ("number", "spec", "progress")))
    values = sa.table("exec_values", *map(sa.column, ("number", "kind", "name", "key", "value", "text")))
    query = sa.select(execs.c.number, execs.c.spec, execs.c.progress).order_by(execs.c.number).limit(_TOGETHER)
    found: Sequence[Any] = connection.execute(query).all()
    while found:
        if rows := [row for number, spec, progress in found for row in _rows(number, spec, progress)]:
            connection.execute(sa.insert(values), rows)
        found = connection.execute(query.where(execs.c.number > found[-1].number)).all()


def _rows(number: int, spec: str, progress: str | None) -> Iterator[dict[str, Any]]:
    try:
        parameters = run_values.parameters(Workload.from_json(spec).program)
        metrics = run_values.metrics(json.loads(progress or "{}"))
    except (ValueError, TypeError, KeyError, AttributeError):  # a damaged row stays as it is
        return
    yield from run_values.rows(number, run_values.PARAMETER, parameters)
    yield from run_values.rows(number, run_values.METRIC, run_values.with_main(metrics))
