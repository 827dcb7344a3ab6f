"""`--connections FILE`: connections that the user who starts the server defines in a file.

    warehouse:
      type: postgresql
      host: db.example.com
      user: reader
      password: env:WAREHOUSE_PASSWORD
      shared-with: everybody
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from pathlib import Path

from dlicmd.contract import wire
from dlicmd.sdk.errors import UsageProblem
from dlicmd.sdk.yaml_file import YamlPlace
from dlicmd.sdk.yaml_file import read as read_yaml
from local_backend.data import registry
from local_backend.data.errors import DataError
from local_backend.sources.values import divided, place_of
from local_backend.store.connections import NAMES, ConnectionRow, is_name
from local_backend.vault import Vault

_TYPE, _SHARED = "type", "shared-with"


def read(file: Path, owner: str, vault: Vault) -> list[ConnectionRow]:
    """Return the connections in a file; all belong to `owner`. Raises DataError with file and line, and VaultError."""
    try:
        found = read_yaml(file)
        entries = [] if found is None else found.entries("the list of connections")
        rows = [_row(name, place, value, owner, vault) for name, place, value in entries]
    except UsageProblem as problem:
        raise DataError(str(problem)) from None
    if any(row.sealed is not None for row in rows) and file.stat().st_mode & 0o077:
        raise DataError(f"{file} contains a secret and other users can read it; run chmod 600 {file}, or write "
                        "env:NAME")
    return rows


def _row(name: str, place: YamlPlace, value: YamlPlace, owner: str, vault: Vault) -> ConnectionRow:
    if not is_name(name):
        place.refuse(f"invalid connection name {name[:64]!r}: {NAMES}")
    entries = {key: (at, item) for key, at, item in value.entries(f"connection '{name}'")}
    if _TYPE not in entries:
        place.refuse(f"connection '{name}' needs a 'type': one of {', '.join(registry.every())}")
    try:
        kind = registry.find(entries[_TYPE][1].text(_TYPE))
        texts = {key: item.text(key) for key, (_, item) in entries.items() if key not in (_TYPE, _SHARED)}
        secrets = {alias for item in kind.fields if item.secret for alias in (item.name, *item.aliases)}
        public, secret = divided(
            kind, {key: (place_of(text) or text) if key in secrets else text for key, text in texts.items()})
    except DataError as problem:
        place.refuse(str(problem))
    return ConnectionRow(
        str(uuid.uuid5(uuid.NAMESPACE_URL, f"connection/{name}")), owner, name, kind.name, json.dumps(public),
        vault.seal_text(json.dumps(secret)) if secret else None,
        json.dumps(_shared(entries[_SHARED][1]) if _SHARED in entries else []), 0.0,
    )


def _shared(value: YamlPlace) -> Sequence[str] | bool:
    names = [item.text(_SHARED) for item in value.items()]
    return True if names == [wire.EVERYBODY] else names
