"""Epochs after which an exec rests, and whether it rests now."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Apply."""
    for name in ("rest_after", "rested"):
        op.add_column("execs", sa.Column(name, sa.Integer))
