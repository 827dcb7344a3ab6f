"""All sealed values of a home: seal them with another key."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace

from sqlalchemy import Connection, select, update

from local_backend.forward import orders
from local_backend.serving.home_database import opened
from local_backend.serving.server import locked, make_home
from local_backend.settings import Settings
from local_backend.store import schema
from local_backend.vault import Vault, VaultError
from local_backend.workload import Workload


def renew_key(settings: Settings) -> None:
    """Seal everything with a new key, and delete the old one. Values that cannot be opened stay as they are. After an
    interruption both keys exist, and the operation can be run again. Raises ServerError, DatabaseError, VaultError,
    OSError and the errors of the database."""
    vault = Vault(settings.paths.vault)
    make_home(settings)
    with locked(settings), closing(opened(settings)) as database:
        vault.seal(b"")  # there may be no key yet
        vault.renew()

        def sealed_anew(text: str) -> str:
            with suppress(VaultError):
                return vault.seal_text(vault.open_text(text))
            return text

        database.write(lambda c: _reseal(c, sealed_anew))
        orders.reseal(settings.paths, sealed_anew)
        vault.forget_old()


def _reseal(connection: Connection, anew: Callable[[str], str]) -> None:
    for table in (schema.connections, schema.exec_secrets):
        [key] = table.primary_key.columns
        for name, text in connection.execute(select(key, table.c.sealed).where(table.c.sealed.is_not(None))).all():
            connection.execute(update(table).where(key == name).values(sealed=anew(text)))
    for column in (schema.searches.c.sealed, schema.searches.c.targets):
        key = schema.searches.c.number
        for number, text in connection.execute(select(key, column).where(column.is_not(None))).all():
            connection.execute(update(schema.searches).where(key == number).values({column: anew(text)}))
    for column in (schema.execs.c.spec, schema.searches.c.workload):
        key = column.table.c.id
        with_variables = select(key).where(~column.contains('"variables": {}'))
        for name in connection.execute(with_variables).scalars().all():
            text = connection.execute(select(column).where(key == name)).scalar_one()
            workload = Workload.from_json(text)
            variables = {name: anew(text) for name, text in workload.environment.variables.items()}
            changed = replace(workload, environment=replace(workload.environment, variables=variables))
            connection.execute(update(column.table).where(key == name).values({column: changed.to_json()}))
