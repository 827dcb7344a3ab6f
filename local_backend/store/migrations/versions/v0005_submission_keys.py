"""Keys of submissions: the server accepts a submission with a key only once."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "submission_keys",
        sa.Column("user", sa.String(200), primary_key=True),
        sa.Column("key", sa.String(255), primary_key=True),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("exec_id", sa.String(40), nullable=False),
        sa.Column("time", sa.Float, nullable=False),
    )
    op.create_index("submission_keys_by_time", "submission_keys", ["time"])
