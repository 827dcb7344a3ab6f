"""Epochs after which an exec rests, and whether it rests now."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Apply."""
    for column in (sa.Column("rest_after", sa.Integer), sa.Column("rested", sa.Integer),
                   sa.Column("promoted", sa.Float)):
        op.add_column("execs", column)
