"""The saved views of each user: what lists of execs show, under a name."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "saved_views",
        sa.Column("user", sa.String(200), primary_key=True),
        sa.Column("name", sa.String(60), primary_key=True),
        sa.Column("query", sa.Text, nullable=False),
    )
