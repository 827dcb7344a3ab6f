"""Notes, tags and favorites of execs; what lists of execs are searched and sorted by."""

from __future__ import annotations

import json
import math

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """Apply."""
    op.add_column("execs", sa.Column("loss", sa.Float))
    op.add_column("execs", sa.Column("accuracy", sa.Float))
    op.create_table(
        "exec_texts",
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("text", sa.Text, nullable=False),
    )
    _fill(op.get_bind())
    op.create_index("execs_listed", "execs", [
        "kind", "deleted", "creator", "state", "app_name", "framework", "create_time", "start_time", "end_time",
        "num_worker", "loss", "accuracy", "parent", "number", "id",
    ])
    op.create_table(
        "exec_notes",
        sa.Column("exec_id", sa.String(40), primary_key=True),
        sa.Column("text", sa.Text, nullable=False),
    )
    op.create_table(
        "exec_tags",
        sa.Column("exec_id", sa.String(40), primary_key=True),
        sa.Column("tag", sa.String(40), primary_key=True),
    )
    op.create_index("exec_tags_by_tag", "exec_tags", ["tag", "exec_id"])
    op.create_table(
        "favorites",
        sa.Column("user", sa.String(200), primary_key=True),
        sa.Column("exec_id", sa.String(40), primary_key=True),
    )
    op.create_index("favorites_by_exec", "favorites", ["exec_id"])


def _fill(connection: sa.Connection) -> None:
    """Derive the new columns and rows from each exec."""
    names = ("number", "id", "app_name", "creator", "framework", "args", "progress", "loss", "accuracy")
    execs = sa.table("execs", *map(sa.column, names))
    texts = sa.table("exec_texts", sa.column("number"), sa.column("text"))
    read = (execs.c[name] for name in names[:7])
    for number, *named, args, progress in connection.execute(sa.select(*read)).all():
        text = "\n".join([*named, f" {args.partition(' -- ')[2]} "]).lower()
        connection.execute(sa.insert(texts).values(number=number, text=text))
        if values := _measured(progress or "{}"):
            connection.execute(sa.update(execs).where(execs.c.number == number).values(**values))


def _measured(progress: str) -> dict[str, float]:
    """Return the last loss and accuracy in a progress."""
    try:
        found = json.loads(progress)
        return {name: float(found[name]) for name in ("loss", "accuracy")
                if isinstance(found.get(name), int | float) and math.isfinite(found[name])}
    except (ValueError, AttributeError, OverflowError):
        return {}
