"""Connections, sealed secrets of execs, and sealed variables of execs, which earlier versions stored in clear."""

from __future__ import annotations

import json
from collections.abc import Callable

import sqlalchemy as sa
from alembic import context, op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "connections",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("owner", sa.String(200), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(64), nullable=False),
        sa.Column("public", sa.Text, nullable=False),
        sa.Column("sealed", sa.Text),
        sa.Column("shared", sa.Text, nullable=False),
        sa.Column("created", sa.Float, nullable=False),
    )
    op.create_index("connections_by_owner", "connections", ["owner", "name"], unique=True)
    op.create_table(
        "exec_secrets",
        sa.Column("exec_id", sa.String(40), primary_key=True),
        sa.Column("sealed", sa.Text, nullable=False),
    )
    _seal_variables()


def _seal_variables() -> None:
    """Seal the values of `env` in every spec."""
    execs = sa.table("execs", sa.column("id", sa.String), sa.column("spec", sa.Text))
    connection = op.get_bind()
    seal: Callable[[str], str] | None = context.config.attributes.get("seal")
    ids = connection.execute(sa.select(execs.c.id).where(~execs.c.spec.contains('"env": {}'))).scalars().all()
    for exec_id in ids:
        text = connection.execute(sa.select(execs.c.spec).where(execs.c.id == exec_id)).scalar_one()
        spec = json.loads(text)
        if not spec.get("env"):
            continue
        if seal is None:
            raise RuntimeError("it holds variables of jobs in clear, which are to be sealed")
        spec["env"] = {name: seal(value) for name, value in spec["env"].items()}
        connection.execute(sa.update(execs).where(execs.c.id == exec_id)
                           .values(spec=json.dumps(spec, sort_keys=True)))
