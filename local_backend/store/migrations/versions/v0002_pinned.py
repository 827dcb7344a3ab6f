"""Slots that an administrator has fixed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Apply."""
    op.add_column("execs", sa.Column("pinned", sa.Integer))
