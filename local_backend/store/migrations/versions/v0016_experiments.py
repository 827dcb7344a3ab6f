"""Model definitions, hardware specifications and experiments with their versions; runs of experiments."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "team_objects",
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("owner", sa.String(200), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("shared", sa.Text, nullable=False),
        sa.Column("newest", sa.Integer, nullable=False),
        sa.Column("create_time", sa.Float, nullable=False),
        sa.Column("update_time", sa.Float, nullable=False),
    )
    op.create_index("team_objects_by_name", "team_objects", ["kind", "owner", "name"], unique=True)
    op.create_table(
        "team_versions",
        sa.Column("object", sa.Integer, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("description", sa.Text, nullable=False),
        sa.Column("content", sa.Text, nullable=False),
        sa.Column("bundle", sa.String(64)),
        sa.Column("size", sa.Integer, nullable=False),
        sa.Column("create_time", sa.Float, nullable=False),
    )
    op.create_index("team_versions_by_bundle", "team_versions", ["bundle"])
    op.create_table(
        "team_uses",
        sa.Column("object", sa.Integer, primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True),
        sa.Column("used", sa.Integer, primary_key=True),
    )
    op.create_index("team_uses_by_used", "team_uses", ["used"])
    op.create_table(
        "experiment_runs",
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("object", sa.Integer, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("creator", sa.String(200), nullable=False),
        sa.Column("run_key", sa.String(255)),
        sa.Column("create_time", sa.Float, nullable=False),
    )
    op.create_index("experiment_runs_by_object", "experiment_runs", ["object", "number"])
    op.create_index("experiment_runs_by_key", "experiment_runs", ["creator", "object", "run_key"], unique=True)
    op.create_table(
        "experiment_run_parts",
        sa.Column("run", sa.Integer, primary_key=True),
        sa.Column("position", sa.Integer, primary_key=True),
        sa.Column("label", sa.Text, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("exec_id", sa.String(40)),
        sa.Column("code", sa.String(60)),
        sa.Column("message", sa.Text),
    )
    op.create_index("experiment_run_parts_by_exec", "experiment_run_parts", ["exec_id"])
