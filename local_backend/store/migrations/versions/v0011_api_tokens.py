"""Tokens that users make for programs, beside those of logons, and the accounts of an OIDC issuer."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Apply."""
    for column in (sa.Column("id", sa.String(16)), sa.Column("name", sa.String(64)), sa.Column("scope", sa.String(20)),
                   sa.Column("created", sa.Float)):
        op.add_column("tokens", column)
    op.create_index("tokens_by_user", "tokens", ["user"])
    op.add_column("users", sa.Column("subject", sa.Text))
