"""Models that were saved from execs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """Apply."""
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
