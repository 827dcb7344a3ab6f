"""Connections for the users of data: found by name or id for a user, with their secrets.

Secrets are sealed in the database, or read when they are needed. A connection that a user may not use does not exist
for that user.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dlicmd.contract import data_sources as wire
from local_backend.data import registry
from local_backend.data.errors import DataError
from local_backend.data.kind import Connection
from local_backend.settings import Settings
from local_backend.sources.connection_file import read as read_file
from local_backend.sources.values import divided, read_value, take
from local_backend.store import connections, exec_secrets, users
from local_backend.store.connections import ConnectionExists, ConnectionRow
from local_backend.store.database import Database
from local_backend.store.execs import ExecRow
from local_backend.vault import Vault, VaultError
from local_backend.workload import DataSource

#: Maximum connections of one user, and maximum characters of a value: keys and certificates are long.
_MOST, _LONGEST = 1000, 64 * 2**10


class Connections:
    """The connections of a server: those of the database, and those of a file, which stay the same while it runs."""

    def __init__(self, settings: Settings, database: Database) -> None:
        """Read the connections of the file. Raises DataError when the file cannot be used, and VaultError."""
        self._settings, self._database = settings, database
        self._vault = Vault(settings.paths.vault)
        self._from_file: list[ConnectionRow] = []
        self._file_time = 0.0
        if settings.connections is not None:
            self._file_time = _time(settings.connections)
            self._from_file = read_file(settings.connections, settings.user, self._vault)
        for row in self.all():
            take(row.values)

    def all(self) -> list[ConnectionRow]:
        """Return the connections of the file, then those of the database."""
        return [*self._from_file, *self._database.read(connections.everything)]

    def visible(self, user: str, admin: bool) -> list[ConnectionRow]:
        """Return the connections that a user may use."""
        return [row for row in self.all() if admin or row.owner == user or row.is_shared_with(user)]

    def is_of_file(self, row: ConnectionRow) -> bool:
        """Return whether a connection is from the file: only the user who starts the server can change it."""
        return row in self._from_file

    def row(self, reference: str, user: str, admin: bool) -> ConnectionRow:
        """Return the connection with this id, `owner/name` or name. A name means the user's own connection, else the
        only one that is shared with the user. Raises DataError."""
        return _meant(reference, user, self.visible(user, admin))

    def find(self, reference: Mapping[str, str], user: str, admin: bool) -> Connection:
        """Return the connection that {"id": ...}, {"href": ...} or {"name": ...} means, with its secrets. Raises
        DataError, with the same message for a missing connection and for one that this user may not use."""
        return self.opened(self.row(_referred(reference), user, admin))

    def opened(self, row: ConnectionRow) -> Connection:
        """Return a connection with its secrets. Raises DataError, whose message shows no secret."""
        try:
            values = {name: read_value(value, row.name) for name, value in row.values.items()}
            if row.sealed is not None:
                values |= json.loads(self._vault.open_text(row.sealed))
        except VaultError as problem:
            raise DataError(f"connection '{row.name}': {problem}") from None
        return Connection(row.kind, values, row.name, row.reference)

    def secrets(self, row: ConnectionRow) -> dict[str, str]:
        """Return the place of each secret of a connection: name → `sealed`, `env:NAME` or `keyring:PLACE`."""
        places = {name: ":".join(next(iter(value.items()))) for name, value in row.values.items()
                  if isinstance(value, Mapping)}
        if row.sealed is None:
            return places
        try:
            sealed = list(json.loads(self._vault.open_text(row.sealed)))
        except VaultError:
            # Without the key that sealed them, the names are unknown. Show all secret fields of the kind.
            kind = registry.every().get(row.kind)
            sealed = [field.name for field in kind.fields if field.secret] if kind else []
        return {name: "sealed" for name in sealed if name not in places} | places

    def of_sources(self, row: ExecRow) -> dict[int, Mapping[str, str]]:
        """Return the values of the connections of an exec: number of the source, from 1 → values. Raises DataError,
        also when a connection was removed since, or when the creator of the exec may not use it any more."""
        admin = self._is_admin(row.creator)
        secrets = self._secrets(row.id)
        found: dict[int, Mapping[str, str]] = {}
        for number, source in enumerate(row.workload.data.sources, 1):
            if source.fetched:
                with _about(number):
                    found[number] = self.of_source(source, secrets.get(str(number), {}), row.creator, admin).values
        return found

    def state(self, row: ExecRow) -> list[list[Any]]:
        """Return the id and the time of the last change of each connection that the sources of an exec mean. The value
        differs after one of them was changed. Raises DataError as `of_sources` does. Reads no secret."""
        seen = self.visible(row.creator, self._is_admin(row.creator))
        found = []
        for number, source in enumerate(row.workload.data.sources, 1):
            if source.fetched and wire.TYPE not in source.connection:
                with _about(number):
                    one = _meant(_referred(source.connection), row.creator, seen)
                found.append([one.id, one.created or self._file_time])
        return found

    def of_source(self, source: DataSource, secrets: Mapping[str, str], user: str, admin: bool) -> Connection:
        """Return the connection of a source: a connection that the user may use, or the one that is written out in the
        source, with its `secrets`. If the source names a database, the connection leads to that database. Raises
        DataError."""
        if wire.TYPE in source.connection:
            public = {name: value for name, value in source.connection.items() if name != wire.TYPE}
            found = Connection(source.kind, public | dict(secrets))
        else:
            found = self.find(source.connection, user, admin)
        database = registry.find(found.kind).database(source.location)
        return dataclasses.replace(found, values={**found.values, **database})

    def sealed(self, secrets: Mapping[int, Mapping[str, str]]) -> str | None:
        """Return the secrets of an exec's sources, sealed for storage; None if there are none. Raises VaultError."""
        return self._vault.seal_text(json.dumps(secrets)) if secrets else None

    def add(  # noqa: PLR0917
        self, owner: str, name: str, kind_name: str, values: Mapping[str, Any], shared: Sequence[str] | bool,
        replace: bool,
    ) -> ConnectionRow:
        """Add a connection of `owner`, and return it. Raises DataError, ConnectionExists, VaultError, and errors of the
        database."""
        if not connections.is_name(name):
            raise DataError(f"invalid connection name {name[:64]!r}: {connections.NAMES}")
        if any(row.owner == owner and row.name == name for row in self._from_file):
            raise ConnectionExists(name, f"in {self._settings.connections}")
        if sum(row.owner == owner for row in self.all()) >= _MOST:
            raise DataError(f"{owner} already has {_MOST} connections, the maximum for one user; remove some")
        for field, value in values.items():
            if isinstance(value, str | int | float) and len(str(value)) > _LONGEST:
                raise DataError(f"'{field[:40]}' has more than {_LONGEST} characters")
        kind = registry.find(kind_name)
        public, secret = divided(kind, values)
        sealed = self._vault.seal_text(json.dumps(secret)) if secret else None
        row = self._database.write(
            lambda c: connections.add(c, owner, name, kind.name, public, sealed, shared, replace)
        )
        take(row.values)
        return row

    def change(self, row: ConnectionRow, values: Mapping[str, Any], shared: Sequence[str] | bool) -> ConnectionRow:
        """Give a connection new values; secrets that are not among them stay as they are. Raises DataError, for a
        connection of the file, and when the connection would lead to another server with a secret that its user did not
        enter again: otherwise a connection could be changed to tell its secrets. Raises VaultError, and errors of the
        database."""
        if self.is_of_file(row):
            raise DataError(f"connection '{row.name}' is defined in {self._settings.connections}; change it there, "
                            "then restart the server")
        kind = registry.find(row.kind)
        spelled = {alias: item for item in kind.fields for alias in (item.name, *item.aliases)}
        given = {spelled[name].name if name in spelled else name for name in values}
        kept = {name: value for name, value in row.values.items() if isinstance(value, Mapping)}
        if row.sealed is not None:
            kept |= json.loads(self._vault.open_text(row.sealed))
        kept = {name: value for name, value in kept.items() if name not in given}
        public = {name: str(value) for name, value in row.values.items() if not isinstance(value, Mapping)}
        told = {spelled[name].name: str(value) for name, value in values.items()
                if name in spelled and not spelled[name].secret}
        if kept and public != told:
            raise DataError(f"values besides secrets changed; enter the secrets again: {', '.join(sorted(kept))}")
        return self.add(row.owner, row.name, row.kind, {**kept, **values}, shared, replace=True)

    def remove(self, row: ConnectionRow) -> None:
        """Delete a connection. Raises DataError for a connection of the file."""
        if self.is_of_file(row):
            raise DataError(f"connection '{row.name}' is defined in {self._settings.connections}; remove it there, "
                            "then restart the server")
        self._database.write(lambda c: connections.remove(c, row.id))

    def _secrets(self, exec_id: str) -> dict[str, dict[str, str]]:
        sealed = self._database.read(lambda c: exec_secrets.of(c, exec_id))
        try:
            return {} if sealed is None else json.loads(self._vault.open_text(sealed))
        except VaultError as problem:
            raise DataError(f"cannot decrypt the credentials of the exec's data: {problem}") from None

    def _is_admin(self, name: str) -> bool:
        found = self._database.read(lambda c: users.get(c, name))
        return name == self._settings.user or (found is not None and found.role == users.ADMIN)


@contextlib.contextmanager
def _about(number: int) -> Iterator[None]:
    """Add the number of the data source to the message of a DataError."""
    try:
        yield
    except DataError as problem:
        raise DataError(f"data source {number}: {problem}") from None


def _time(file: Path) -> float:
    """Return the time when a file was written; 0 if the file is missing, which the reader of the file reports."""
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _referred(reference: Mapping[str, str]) -> str:
    """Return the id or name in a reference. Raises DataError."""
    for key in wire.REFERENCES:
        if key in reference:
            text = str(reference[key])
            # WML refers to assets by address: /v2/connections/ID?project_id=P
            return text.partition("?")[0].rstrip("/").rpartition("/")[2] if key == wire.HREF else text
    raise DataError("a reference to a connection needs a 'name' or an 'id'")


def _meant(reference: str, user: str, seen: Sequence[ConnectionRow]) -> ConnectionRow:
    """Return the connection with this id, `owner/name` or name among those that a user may use. Raises DataError."""
    for found in (
        [row for row in seen if reference in (row.id, row.reference)],
        [row for row in seen if row.name == reference and row.owner == user],
        [row for row in seen if row.name == reference and row.is_shared_with(user)],
        [row for row in seen if row.name == reference],
    ):
        if len(found) == 1:
            return found[0]
        if found:
            several = ", ".join(f"{row.reference} ({row.id})" for row in found)
            raise DataError(f"more than one connection has the name '{reference}'; use one of these: {several}")
    raise DataError(f"connection '{reference[:80]}' does not exist, or you may not use it; to list the connections of "
                    "this server: local-backend connection list")
