"""Connections: each user has their own, and may use those that other users share. No method returns a secret."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from local_backend.data import registry
from local_backend.data.errors import DataError, KindUnusable
from local_backend.data.kind import Kind
from local_backend.data.probe import tested
from local_backend.data.storage import DataRoots
from local_backend.errors import AccessDenied, Conflict, Invalid, NotFound
from local_backend.services.access import Caller
from local_backend.services.base import Base
from local_backend.sources.connections import Connections
from local_backend.sources.values import references
from local_backend.store.connections import ConnectionExists, ConnectionRow


@dataclass(frozen=True)
class ConnectionService:
    """Operations on connections."""

    base: Base
    known: Connections

    def list(self, caller: Caller) -> list[ConnectionRow]:
        """Return the connections that the caller may use."""
        return self.known.visible(caller.name, caller.admin)

    def add(  # noqa: PLR0917
        self, caller: Caller, name: str, kind: str, values: Mapping[str, Any], shared: Sequence[str] | bool,
        replace: bool,
    ) -> ConnectionRow:
        """Add a connection. `replace` replaces the caller's own connection of this name and keeps its id.

        Instead of a secret, an administrator may give {"env": NAME} or {"keyring": "SERVICE/USER"} of the server.
        `shared` lists other users that may use the connection; True means all. Raises Denied, Invalid
        (`connection.invalid`, `data.kind_unusable`), Conflict (`connection.exists`), VaultError.
        """
        with self.base.recorded(caller, "connection.add", name):
            if references(values):
                taken = references(values)[0][:40]
                caller.check_admin(f"use '{taken}' from the environment or keyring of the server")
            try:
                row = self.known.add(caller.name, name, kind, values, shared, replace)
            except KindUnusable as problem:
                raise Invalid("data.kind_unusable", str(problem)) from None
            except DataError as problem:
                raise Invalid("connection.invalid", str(problem)) from None
            except ConnectionExists as problem:
                raise Conflict("connection.exists", str(problem)) from None
        # Pending jobs may get their data through the connection that was replaced.
        self.base.wake()
        return row

    def kinds(self) -> Sequence[Kind]:
        """Return the kinds of connections with their fields, by title."""
        return sorted(registry.every().values(), key=lambda kind: kind.title.lower())

    def change(
        self, caller: Caller, name: str, values: Mapping[str, Any], shared: Sequence[str] | bool
    ) -> ConnectionRow:
        """Give a connection new values, and share it with these users; True means all. Secrets that are absent stay as
        they are, if all other values do. Users may change their own, administrators any.

        Raises NotFound (`connection.not_found`), Denied (`connection.of_another_user`), Invalid (`connection.invalid`,
        `data.kind_unusable`), VaultError.
        """
        with self.base.recorded(caller, "connection.change", name):
            row = self._found(caller, name)
            self._check_owner(caller, row)
            if references(values):
                caller.check_admin("use secrets from the environment or keyring of the server")
            try:
                row = self.known.change(row, values, shared)
            except KindUnusable as problem:
                raise Invalid("data.kind_unusable", str(problem)) from None
            except DataError as problem:
                raise Invalid("connection.invalid", str(problem)) from None
        self.base.wake()
        return row

    def may_change(self, caller: Caller, row: ConnectionRow) -> bool:
        """Return whether the caller may change and remove a connection."""
        return (caller.admin or row.owner == caller.name) and not self.known.is_of_file(row)

    def found(self, caller: Caller, name: str) -> ConnectionRow:
        """Return a connection that the caller may use, by name or id. Raises NotFound (`connection.not_found`)."""
        return self._found(caller, name)

    def remove(self, caller: Caller, name: str) -> None:
        """Remove a connection by name or id. Users may remove their own, administrators any. Raises NotFound
        (`connection.not_found`), Denied (`connection.of_another_user`), Conflict (`connection.of_file`)."""
        with self.base.recorded(caller, "connection.remove", name):
            row = self._found(caller, name)
            self._check_owner(caller, row)
            try:
                self.known.remove(row)
            except DataError as problem:
                raise Conflict("connection.of_file", str(problem)) from None
        self.base.wake()

    def test(self, caller: Caller, name: str, places: DataRoots | None = None) -> str | None:
        """Return why the server of a connection refuses it, None if it accepts it. Takes at most 30 seconds.

        `places` are the folders that a connection to files may use, by default those of the caller. Raises NotFound
        (`connection.not_found`).
        """
        with self.base.recorded(caller, "connection.test", name):
            row = self._found(caller, name)
            try:
                return tested(self.known.opened(row), places or self.base.data_roots(caller))
            except DataError as problem:
                return str(problem)

    def secrets(self, caller: Caller, row: ConnectionRow) -> dict[str, str]:
        """Return where each secret of a connection is kept. The result is empty for other users than the owner and
        administrators."""
        return self.known.secrets(row) if caller.admin or row.owner == caller.name else {}

    @staticmethod
    def _check_owner(caller: Caller, row: ConnectionRow) -> None:
        if not (caller.admin or row.owner == caller.name):
            raise AccessDenied("connection.of_another_user", f"Connection {row.name!r} belongs to {row.owner}")

    def _found(self, caller: Caller, name: str) -> ConnectionRow:
        try:
            return self.known.row(name, caller.name, caller.admin)
        except DataError as problem:
            raise NotFound("connection.not_found", str(problem)) from None
