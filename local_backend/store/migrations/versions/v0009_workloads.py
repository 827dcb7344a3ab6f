"""Kinds and parents of workloads, and code bundles. Every exec of an earlier version trains, alone."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Apply."""
    op.add_column("execs", sa.Column("kind", sa.String(20), nullable=False, server_default="training"))
    op.add_column("execs", sa.Column("parent", sa.String(40)))
    op.add_column("execs", sa.Column("bundle", sa.String(64)))
    op.create_index("execs_by_bundle", "execs", ["bundle"])
