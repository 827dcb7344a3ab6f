"""Alembic runs this module. It applies the versions on the connection from `upgrade.py`, inside its transaction."""

from __future__ import annotations

from alembic import context

from local_backend.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
