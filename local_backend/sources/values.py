"""Values of connections: which are public, which are secret, and the places from which secrets are read.

A secret is a text, or the place from which the server reads it when it is needed: {"env": NAME} names a variable of the
server's environment, {"keyring": "SERVICE/USER"} an entry in the keyring of the system.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from local_backend import own_process
from local_backend.data.errors import DataError
from local_backend.data.kind import Kind

ENV, KEYRING = "env", "keyring"
_PLACES = '{"env": NAME} or {"keyring": "SERVICE/USER"}'
#: Variables that hold secrets of connections. They are removed from the environment of this process: no job inherits
#: them.
_taken: dict[str, str] = {}


def place_of(text: str) -> dict[str, str] | None:
    """Return the place of a secret that is written as `env:NAME` or `keyring:SERVICE/USER`; None for the secret
    itself."""
    kind, colon, place = text.partition(":")
    return {kind: place} if colon and place and kind in (ENV, KEYRING) else None


def references(values: Mapping[str, Any]) -> Sequence[str]:
    """Return the names of the values that are read from the environment or the keyring of the server."""
    return [name for name, value in values.items() if isinstance(value, Mapping)]


def divided(kind: Kind, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values of a new connection by field name: those that may be shown, with the places of secrets, and the
    secrets. Raises DataError for values that do not fit this kind of connection."""
    given = kind.check({name: _text(name, value) for name, value in values.items()})
    spelled = {alias: item for item in kind.fields for alias in (item.name, *item.aliases)}
    public: dict[str, Any] = {}
    secret: dict[str, str] = {}
    for name, value in values.items():
        field = spelled[name]
        if isinstance(value, Mapping):
            if not field.secret:
                raise DataError(f"'{field.name}' is not a secret; give its value")
            public[field.name] = dict(value)
        elif field.secret:
            secret[field.name] = given[field.name]
        else:
            public[field.name] = given[field.name]
    return public, secret


def take(values: Mapping[str, Any]) -> None:
    """Move the variables that hold secrets among these values from the environment of this process to `_taken`."""
    _take(value[ENV] for value in values.values() if isinstance(value, Mapping) and ENV in value)


def read_value(value: Any, connection: str) -> str:
    """Return a value as text, read from its place if it has one. Raises DataError with the name of the connection."""
    if not isinstance(value, Mapping):
        return str(value)
    if ENV not in value:
        return _from_keyring(str(value[KEYRING]), connection)
    name = str(value[ENV])
    _take([name])
    if name not in _taken:
        raise DataError(f"connection '{connection}': {name} is not set in the environment of the server")
    return _taken[name]


def _take(names: Iterable[str]) -> None:
    for name in names:
        value = own_process.take(name)
        if value is not None:
            _taken[name] = value


def _text(name: str, value: Any) -> str:
    """Return a value as text, to check whether it is present. Raises DataError."""
    if isinstance(value, Mapping) and len(value) == 1:
        kind, place = next(iter(value.items()))
        if kind in (ENV, KEYRING) and isinstance(place, str) and place:
            return place
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise DataError(f"'{name[:40]}' must be a string, {_PLACES}")


def _from_keyring(place: str, connection: str) -> str:
    service, _, user = place.rpartition("/")
    try:
        import keyring  # an extra, which few servers have
    except ImportError:
        raise DataError(f"connection '{connection}': the server has no keyring library; install it with pip "
                        "install 'dlicmd[keyring]'") from None
    try:
        found = keyring.get_password(service, user)
    except Exception as problem:  # backends of the keyring library raise exceptions of any class
        why = " ".join(str(problem).split())[:200] or type(problem).__name__
        raise DataError(f"connection '{connection}': cannot read the keyring of the server: {why}") from None
    if found is None:
        raise DataError(f"connection '{connection}': the keyring of the server has no entry '{place}'")
    return found
