"""Execs, their events, issued numbers, and the tokens made by logon."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "execs",
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("id", sa.String(40), nullable=False, unique=True),
        sa.Column("creator", sa.String(200), nullable=False),
        sa.Column("framework", sa.String(100), nullable=False),
        sa.Column("app_name", sa.String(200), nullable=False),
        sa.Column("args", sa.Text, nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("data_source", sa.Text),
        sa.Column("elastic", sa.Boolean, nullable=False),
        sa.Column("num_worker", sa.Integer, nullable=False),
        sa.Column("work_dir", sa.Text, nullable=False),
        sa.Column("state", sa.String(40), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("slots", sa.Text),
        sa.Column("create_time", sa.Float, nullable=False),
        sa.Column("start_time", sa.Float),
        sa.Column("end_time", sa.Float),
        sa.Column("exit_code", sa.Integer),
        sa.Column("message", sa.Text),
        sa.Column("reason", sa.String(40)),
        sa.Column("stop_requested", sa.Boolean, nullable=False),
        sa.Column("deleted", sa.Boolean, nullable=False),
    )
    op.create_index("execs_by_state", "execs", ["state"])
    op.create_table(
        "events",
        sa.Column("sequence", sa.Integer, primary_key=True),
        sa.Column("exec_id", sa.String(40), nullable=False, index=True),
        sa.Column("time", sa.Float, nullable=False),
        sa.Column("state", sa.String(40), nullable=False),
        sa.Column("message", sa.Text),
    )
    op.create_table(
        "sequences",
        sa.Column("name", sa.String(40), primary_key=True),
        sa.Column("last", sa.Integer, nullable=False),
    )
    op.create_table(
        "tokens",
        sa.Column("hash", sa.String(64), primary_key=True),
        sa.Column("user", sa.String(200), nullable=False),
        sa.Column("expires", sa.Float, nullable=False),
    )


def downgrade() -> None:
    """Undo."""
    for table in ("tokens", "sequences", "events", "execs"):
        op.drop_table(table)
