"""Indexes to find a page of a user's execs, and the execs that need the supervisor, without reading all rows."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Apply."""
    op.create_index("execs_by_creator", "execs", ["creator", "number"])
    deleted = sa.column("deleted", sa.Boolean).is_(True)
    op.create_index("execs_deleted", "execs", ["deleted"], sqlite_where=deleted, postgresql_where=deleted)
