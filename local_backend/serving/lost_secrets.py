"""The sealed values of a home that cannot be opened, because their key is lost."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection, select

from local_backend.forward import orders
from local_backend.runtime.paths import HomePaths
from local_backend.store import execs, schema
from local_backend.vault import Vault, VaultError


def lost(connection: Connection, paths: HomePaths) -> Iterator[str]:
    """Yield the objects with sealed values that cannot be opened: connections, execs that have not ended, metrics to
    forward."""
    vault = Vault(paths.vault)
    connections = connection.execute(select(schema.connections.c.name, schema.connections.c.sealed)).all()
    yield from (f"connection {name}" for name, sealed in connections if sealed and _is_lost(vault, sealed))
    secrets: dict[str, str] = {row.exec_id: row.sealed for row in connection.execute(select(schema.exec_secrets))}
    for row in execs.unfinished(connection):
        texts = [*row.workload.environment.variables.values(), *filter(None, [secrets.get(row.id)])]
        if not row.terminal and any(_is_lost(vault, text) for text in texts):
            yield row.id
    for exec_id in orders.open_orders(paths):
        if orders.find(paths, exec_id) is None:
            yield f"metrics of {exec_id}"


def _is_lost(vault: Vault, sealed: str) -> bool:
    try:
        vault.open_text(sealed)
    except VaultError:
        return True
    return False
