"""Users with passwords and roles. Earlier tokens have another form, so this version deletes them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "users",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("password", sa.String(255), nullable=False),
        sa.Column("role", sa.String(20), nullable=False),
        sa.Column("created", sa.Float, nullable=False),
    )
    op.execute(sa.text("DELETE FROM tokens"))
