"""The history of held slots, and an index that finds runs of the same name."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "holdings",
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("exec_id", sa.String(40), nullable=False),
        sa.Column("user", sa.String(200), nullable=False),
        sa.Column("consumer", sa.Text, nullable=False),
        sa.Column("slot", sa.String(100), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("share", sa.Float, nullable=False),
        sa.Column("since", sa.Float, nullable=False),
        sa.Column("until", sa.Float),
    )
    op.create_index("holdings_by_until", "holdings", ["until"])
    op.create_index("execs_by_name", "execs", ["creator", "framework", "app_name"])
