"""`served.json`: the settings that the server of a home was started with, for commands that look at the home from a
shell with other flags and another environment. The file stays when the server ends: clients see whether it served other
users."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlicmd.contract import home as home_contract
from local_backend.files import read_json, write_json
from local_backend.setting_source import GivenSettings, given
from local_backend.settings import TABLE, Settings

_SETTINGS, _VALUE, _SOURCE, _SELF_SIGNED, _PORT = "settings", "value", "source", "tls_self_signed", "port"
_DATABASE = "DLI_DATABASE"
_SECRET = {setting.variable for setting in TABLE if setting.secret}


@dataclass(frozen=True)
class Served:
    """The content of the file. `command` starts such a server again, without the secrets of its environment."""

    embedded: bool
    tls_self_signed: bool
    command: str
    said: GivenSettings

    def settings(self, home: Path) -> Settings:
        """Return the settings of that server. Raises ValueError when the file leaves out its database, and the present
        environment does not name it either."""
        values = dict(self.said.values)
        if _DATABASE in self.said.sources and _DATABASE not in values:
            text = given(TABLE, home).text(_DATABASE)
            if text is None:
                raise ValueError(f"the server took its database from {self.said.sources[_DATABASE]}, which contains "
                                 f"a password; set the same {_DATABASE} here")
            values[_DATABASE] = text
        return Settings.of(home, GivenSettings(values, self.said.sources), embedded=self.embedded or None,
                           tls_self_signed=self.tls_self_signed or None)


def leave(settings: Settings, port: int) -> None:
    """Write the file, with the port on which the server listens. Raises OSError."""
    said = settings.said
    write_json(settings.paths.served, {
        _PORT: port,
        home_contract.EMBEDDED: settings.embedded, _SELF_SIGNED: settings.tls_self_signed,
        home_contract.COMMAND: _command(settings),
        _SETTINGS: {variable: {_VALUE: _told(variable, text), _SOURCE: said.sources[variable]}
                    for variable, text in said.values.items()},
    })


def read(file: Path) -> Served | None:
    """Return the content of the file; None if the file is missing or malformed. Raises OSError."""
    found = read_json(file)
    try:
        rows: dict[str, Any] = found[_SETTINGS]
        values = {variable: str(row[_VALUE]) for variable, row in rows.items() if row[_VALUE] is not None}
        sources = {variable: str(row[_SOURCE]) for variable, row in rows.items()}
        return Served(bool(found[home_contract.EMBEDDED]), bool(found[_SELF_SIGNED]), str(found[home_contract.COMMAND]),
                      GivenSettings(values, sources))
    except (TypeError, KeyError, AttributeError):
        return None


def last_port(file: Path) -> int:
    """Return the port of the last server of the home; 0 if the file does not say it."""
    try:
        port = read_json(file)[_PORT]
    except (OSError, TypeError, KeyError):
        return 0
    return port if type(port) is int and 0 < port < 65_536 else 0


def _told(variable: str, text: str) -> str | None:
    """Return a value that the file may contain; None for a secret, or for an address with a password."""
    if variable not in _SECRET:
        return text
    if variable != _DATABASE:
        return None
    from local_backend.store.postgres import parse

    address = parse(text)
    return None if address.password or "password" in address.query else text


def _command(settings: Settings) -> str:
    """Return the `local-backend serve` command with the flags that this server was given."""
    words = ["local-backend", "serve"]
    for variable, source in settings.said.sources.items():
        text = settings.said.values[variable]
        if source.startswith("--set "):
            words += ["--set", f"{source.removeprefix('--set ')}={text}"]
        elif source == "--open-metrics":
            words.append(source)
        elif source.startswith("--"):
            words += [source, text]
    if settings.tls_self_signed:
        words.append("--tls-self-signed")
    return shlex.join(words)
