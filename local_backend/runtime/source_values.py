"""The values of the connections that an exec's data comes from, secrets included: for its fetcher, and for no disk."""

from __future__ import annotations

import json

from dlicmd.contract import data_sources as wire
from local_backend.data.errors import DataError
from local_backend.settings import Settings
from local_backend.store import exec_secrets
from local_backend.store.database import Database
from local_backend.store.execs import ExecRow
from local_backend.vault import Vault, VaultError


class Values:
    """Called with an exec: number of a source that is fetched → values. Raises DataError, and what the database
    raises."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._vault, self._database = Vault(settings.paths.vault), database

    def __call__(self, row: ExecRow) -> dict[int, dict[str, str]]:
        secrets = self._secrets(row)
        return {
            number: {name: text for name, text in source.connection.items() if name != wire.TYPE}
            | secrets.get(str(number), {})
            for number, source in enumerate(row.job.sources, 1) if source.fetched
        }

    def _secrets(self, row: ExecRow) -> dict[str, dict[str, str]]:
        """Those that were written into the submission."""
        sealed = self._database.read(lambda c: exec_secrets.of(c, row.id))
        try:
            found: dict[str, dict[str, str]] = json.loads(self._vault.open_text(sealed)) if sealed else {}
        except VaultError as problem:
            raise DataError(f"the values of its connections cannot be opened: {problem}") from None
        return found
