"""The last progress of an exec, with the exec."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Apply."""
    op.add_column("execs", sa.Column("progress", sa.Text))
