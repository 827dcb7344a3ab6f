"""Checks the data sources of a submission and turns them into the sources of a job."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dlicmd.contract import data_sources as wire
from dlicmd.contract.secret import MASK, masked_place, masked_sources
from local_backend.data import fs, kinds
from local_backend.data.errors import DataError
from local_backend.data.kinds.base import FileFamily, Kind, Mounted, TableFamily
from local_backend.data.listing import named
from local_backend.data.model import Connection
from local_backend.data.names import Names, after_location, after_path
from local_backend.jobspec import Source

#: Finds the connection that {"id"|"name"|"href": ...} refers to, for the submitting user. Raises DataError.
Find = Callable[[Mapping[str, str]], Connection]


@dataclass
class Asked:
    """The checked data sources of a submission. `data_dir` is DATA_DIR, as far as it is known. Every user who may see
    the exec sees `shown`. `secrets` belong to written-out connections, by the number of their source in `sources`, from
    1. `notes` name input that the submitter may not have meant."""

    data_dir: str
    sources: tuple[Source, ...] = ()
    shown: list[Any] = field(default_factory=list)
    secrets: dict[int, dict[str, str]] = field(default_factory=dict, repr=False)
    notes: list[str] = field(default_factory=list)


def understand(sources: Sequence[Any], roots: fs.DataRoots, find: Find, *, typed: bool = False) -> Asked:
    """Check the data sources of a submission, without connecting to a server. Raises DataError with a sentence that
    says which source is wrong, and how. With `typed`, a `path` names a table if the kind has tables: users type
    CONNECTION:PATH for every kind."""
    _check_schema(list(sources))
    found: list[Source] = []
    asked = Asked("")
    names = Names(sources)
    for number, source in enumerate(sources, 1):
        before = len(found)
        try:
            for one, secrets in _understood(source, roots, find, typed):
                found.append(replace(one, name=names.of(source, one.name)))
                if secrets:
                    asked.secrets[len(found)] = secrets
        except DataError as problem:
            raise type(problem)(f"data source {number}: {problem}") from None
        asked.notes += [f"data source {number}: {note}" for note in _notes(source, found[before:])]
        asked.shown.append(_shown(source))
    asked.sources, asked.data_dir = tuple(found), found[0].path
    return asked


def _check_schema(sources: list[Any]) -> None:
    from jsonschema import Draft202012Validator

    faults = Draft202012Validator(wire.SCHEMA).iter_errors(sources)
    problem = wire.beyond_schema(sources) or next(map(wire.explained, faults), None)
    if problem is not None:
        raise DataError(problem)


def _understood(
    source: Mapping[str, Any], roots: fs.DataRoots, find: Find, typed: bool
) -> Iterator[tuple[Source, dict[str, str]]]:
    """Yield the sources that one entry means, each with its secrets: one source, or one per path on this machine."""
    kind, location = source[wire.TYPE], source.get(wire.LOCATION, {})
    if kind == wire.DATA_ASSET and not named(location):
        raise DataError("this server has no project assets; give the path of the file (location.path), or name a "
                        "connection (type connection)")
    if kind in (wire.FS, wire.DATA_ASSET):
        for path in fs.places(location, roots):
            yield Source(after_path(path), kind, wire.MOUNT, path), {}
        return
    if kind == wire.CONTAINER and not source.get(wire.CONNECTION) and wire.ASSET not in source:
        raise DataError("this server has no default bucket; name a connection (type connection)")
    if location and set(location) <= {wire.ID, wire.HREF}:
        raise DataError(f"the location has only '{next(iter(location))}', which names a project asset, but this server "
                        "has no project assets; select data of the connection: bucket and paths, or schema_name "
                        "and table_name")
    connection = _connection(source, location, find)
    kind, family = connection.kind, connection.kind.open(connection.values)
    if typed and isinstance(family, TableFamily) and [*location] == [wire.PATH]:
        location = family.typed(str(location[wire.PATH]))
    family.check(location)
    if isinstance(family, Mounted):
        for key in (wire.ACCESS, wire.TARGET):
            if source.get(key, wire.MOUNT) != wire.MOUNT:
                raise DataError(f"a storage volume is always mounted, never fetched; remove '{key}'")
        for path in fs.mounted(family.values, location, roots):
            yield Source(after_path(path), source[wire.TYPE], wire.MOUNT, path), {}
        return
    access = source.get(wire.ACCESS, wire.DOWNLOAD)
    if access == wire.MOUNT:
        raise DataError(f"data of {kind.title} cannot be mounted: 'access' must be download or stream")
    if access == wire.STREAM:
        family.storage()
    said = {key: value for key, value in location.items() if key not in wire.FOREIGN}
    yield Source(
        after_location(said, kind.name), source[wire.TYPE], access, kind=kind.name, connection=connection.public,
        location=said, target=_target(source.get(wire.TARGET, wire.LOCAL), kind.cached(access), roots),
    ), connection.secrets


@dataclass(frozen=True)
class _Connection:
    """The connection of a source, with the database that its location names. `public` is stored in clear, `secrets` are
    not. For a connection that the server knows, `public` has only the reference to it."""

    kind: Kind
    values: dict[str, str] = field(repr=False)
    public: dict[str, str]
    secrets: dict[str, str] = field(repr=False, default_factory=dict)


def _connection(source: Mapping[str, Any], location: Mapping[str, Any], find: Find) -> _Connection:
    connection = {name: _plain(value) for name, value in source.get(wire.CONNECTION, {}).items()}
    if wire.ASSET in source:
        if connection:
            raise DataError(f"'{wire.CONNECTION}' and '{wire.ASSET}' both name a connection; give only one of them")
        connection = {wire.ID: source[wire.ASSET][wire.ASSET_ID]}
    if wire.TYPE in connection or (source[wire.TYPE] == wire.S3 and not set(wire.REFERENCES) & set(connection)):
        kind = kinds.find(connection.pop(wire.TYPE, source[wire.TYPE]))
        connection.pop(wire.NAME, None)
        values = kind.check(connection | kind.database(location))
        hidden = {item.name for item in kind.fields if item.secret}
        public = {wire.TYPE: kind.name} | {name: text for name, text in values.items() if name not in hidden}
        return _Connection(kind, values, public, {name: text for name, text in values.items() if name in hidden})
    public = {name: text for name, text in connection.items() if name in wire.REFERENCES}
    if not public:
        raise DataError("'connection' names no connection; give its 'name' or 'id', or a 'type' with its values")
    known = find(public)
    kind = kinds.find(known.kind)
    return _Connection(kind, {**known.values, **kind.database(location)}, public)


def _target(target: Any, cached: bool, roots: fs.DataRoots) -> str:
    place = str(fs.volume(target[wire.VOLUME], roots)) if isinstance(target, dict) else str(target)
    if cached and place != wire.LOCAL:
        fs.cache_of(place, roots)
    return place


def _notes(source: Mapping[str, Any], sources: Sequence[Source]) -> Iterator[str]:
    """Yield notes about keys that seem to name something but do not, and about paths that programs cannot tell
    apart."""
    location, found = source.get(wire.LOCATION, {}), sources[-1]
    yield from map(divided, [one.path for one in sources if os.pathsep in one.path][:1])
    keys = [key for key in wire.PATH_KEYS if wire.paths_in(location.get(key))]
    for key in keys[1:]:
        if wire.paths_in(location[key]) != wire.paths_in(location[keys[0]]):
            yield f"'{key}' is ignored because '{keys[0]}' names the paths"
    if found.kind and not issubclass(kinds.find(found.kind).family, FileFamily):
        return
    empty = next((key for key in wire.PATH_KEYS if key in location), None)
    if empty is not None and not named(location):
        yield f"'{empty}' names no path: the job gets all data of {found.path or 'the connection'}"
    elif found.kind and not location and {item.name for item in kinds.find(found.kind).fields} & set(wire.TOPS):
        yield "the location is empty: the job gets all data of the connection"


def divided(path: str) -> str:
    """Return the note for a path that does not survive in a list of paths."""
    return (f"{path} contains '{os.pathsep}', the separator of DLI_DATA_DIRS: programs must use DATA_DIR, or the list "
            "in DLI_DATA_SOURCES_FILE")


def _plain(value: Any) -> str:
    """Return a connection value as text: clients write ports as numbers."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _shown(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return a source as submitted, with secrets masked. In a written-out connection only the type, references and the
    public fields of its kind stay visible."""
    shown: dict[str, Any] = masked_sources(source)
    connection = source.get(wire.CONNECTION)
    if isinstance(connection, dict):
        public = set(wire.REFERENCES) | {wire.TYPE} | _public(connection.get(wire.TYPE, source[wire.TYPE]))
        shown[wire.CONNECTION] = {
            name: (masked_place(value) if isinstance(value, str) else value) if name in public else MASK
            for name, value in connection.items()
        }
    return shown


def _public(kind: str) -> set[str]:
    try:
        fields = kinds.find(kind).fields
    except DataError:
        return set()
    return {name for item in fields if not item.secret for name in (item.name, *item.aliases)}
