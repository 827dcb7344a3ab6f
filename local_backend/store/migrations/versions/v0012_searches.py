"""Searches for hyper-parameters, their experiments, and installed algorithms."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Apply."""
    op.create_index("execs_by_parent", "execs", ["parent"])
    op.create_table(
        "searches",
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("id", sa.String(40), nullable=False, unique=True),
        sa.Column("creator", sa.String(200), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("definition", sa.Text, nullable=False),
        sa.Column("workload", sa.Text, nullable=False),
        sa.Column("args", sa.Text, nullable=False),
        sa.Column("data_source", sa.Text),
        sa.Column("sealed", sa.Text),
        sa.Column("targets", sa.Text),
        sa.Column("bundle", sa.String(64), nullable=False),
        sa.Column("seed", sa.Integer, nullable=False),
        sa.Column("state", sa.String(40), nullable=False),
        sa.Column("ending", sa.String(20)),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("create_time", sa.Float, nullable=False),
        sa.Column("begin_time", sa.Float, nullable=False),
        sa.Column("end_time", sa.Float),
        sa.Column("used", sa.Float, nullable=False),
        sa.Column("message", sa.Text),
        sa.Column("earlier", sa.Text),
        sa.Column("plugin_state", sa.LargeBinary),
        sa.Index("searches_by_name", "creator", "name", unique=True),
        sa.Index("searches_by_state", "state"),
        sa.Index("searches_by_bundle", "bundle"),
    )
    op.create_table(
        "experiments",
        sa.Column("search", sa.Integer, primary_key=True),
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("parameters", sa.Text, nullable=False),
        sa.Column("state", sa.String(40), nullable=False),
        sa.Column("metric", sa.Float),
        sa.Column("measured", sa.Text),
        sa.Column("metrics", sa.Text),
        sa.Column("exec_id", sa.String(40)),
        sa.Column("resource", sa.Integer),
        sa.Column("bracket", sa.Integer, nullable=False),
        sa.Column("rung", sa.Integer, nullable=False),
        sa.Column("origin", sa.Integer),
        sa.Column("told", sa.Integer),
        sa.Column("rungs", sa.Text),
        sa.Column("start_time", sa.Float),
        sa.Column("end_time", sa.Float),
        sa.Column("message", sa.Text),
        sa.Index("experiments_by_state", "search", "state"),
        sa.Index("experiments_by_metric", "search", "metric"),
        sa.Index("experiments_by_exec", "exec_id"),
    )
    op.create_table(
        "search_algorithms",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("creator", sa.String(200), nullable=False),
        sa.Column("description", sa.Text, nullable=False),
    )
