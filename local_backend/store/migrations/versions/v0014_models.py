"""Models, their revisions, saved models, and runtimes; the kernels that a service can use, and has at least."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Apply."""
    op.add_column("execs", sa.Column("wanted", sa.Integer))
    op.add_column("execs", sa.Column("least", sa.Integer))
    op.create_table(
        "models",
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(63), nullable=False, unique=True),
        sa.Column("creator", sa.String(200), nullable=False),
        sa.Column("shared", sa.Text, nullable=False),
        sa.Column("profile", sa.Text, nullable=False),
        sa.Column("readme", sa.Text, nullable=False),
        sa.Column("started", sa.Boolean, nullable=False),
        sa.Column("traffic", sa.Text, nullable=False),
        sa.Column("space", sa.String(200)),
        sa.Column("create_time", sa.Float, nullable=False),
        sa.Column("update_time", sa.Float, nullable=False),
        sa.Column("start_time", sa.Float),
        sa.Column("message", sa.Text),
    )
    op.create_index("models_by_creator", "models", ["creator"])
    op.create_table(
        "revisions",
        sa.Column("model", sa.Integer, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("description", sa.Text, nullable=False),
        sa.Column("bundle", sa.String(64), nullable=False),
        sa.Column("size", sa.Integer, nullable=False),
        sa.Column("creator", sa.String(200), nullable=False),
        sa.Column("create_time", sa.Float, nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("exec_id", sa.String(40)),
        sa.Column("source", sa.Text),
        sa.Column("message", sa.Text),
    )
    op.create_index("revisions_by_bundle", "revisions", ["bundle"])
    op.create_index("revisions_by_exec", "revisions", ["exec_id"])
    op.create_table(
        "runtimes",
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("creator", sa.String(200), nullable=False),
        sa.Column("description", sa.Text, nullable=False),
        sa.Column("create_time", sa.Float, nullable=False),
        sa.Column("update_time", sa.Float, nullable=False),
    )
    op.create_table(
        "saved_models",
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True),
        sa.Column("creator", sa.String(200), nullable=False),
        sa.Column("bundle", sa.String(64), nullable=False),
        sa.Column("size", sa.Integer, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("space", sa.String(200)),
        sa.Column("create_time", sa.Float, nullable=False),
    )
    op.create_index("saved_models_by_bundle", "saved_models", ["bundle"])
