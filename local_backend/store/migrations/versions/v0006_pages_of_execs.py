"""A page of somebody's execs, and those that need the supervisor, are found without reading all."""

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
