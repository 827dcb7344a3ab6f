"""The event stream: events of any kind, with ids that are never used twice."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

#: Only so many events are kept, see events.py.
_MOST = 100_000


def upgrade() -> None:
    """Apply. The states that execs entered become events; no reader has seen their earlier ids."""
    before = sa.table(
        "events", *(sa.column(name) for name in ("sequence", "exec_id", "time", "state", "message"))
    )
    connection = op.get_bind()
    newest = sa.select(before).order_by(before.c.sequence.desc()).limit(_MOST)
    rows = connection.execute(newest).all()[::-1]
    op.drop_table("events")
    events = op.create_table(
        "events",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("exec_id", sa.String(40), nullable=False, index=True),
        sa.Column("time", sa.Float, nullable=False),
        sa.Column("kind", sa.String(40), nullable=False),
        sa.Column("data", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    op.bulk_insert(events, [
        {"exec_id": row.exec_id, "time": row.time, "kind": "state",
         "data": json.dumps({"state": row.state} | ({"message": row.message} if row.message is not None else {}))}
        for row in rows
    ])
