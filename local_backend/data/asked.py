"""The data sources of a submission: checked, and turned into what the job needs to know of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dlicmd.contract import data_sources as wire
from dlicmd.contract.secret import MASK, masked_place
from local_backend.data import fs, kinds
from local_backend.data.errors import DataError
from local_backend.data.kinds.base import NO_STREAM, FileFamily, Mounted
from local_backend.data.listing import named
from local_backend.data.model import Connection
from local_backend.data.names import Names, after_location, after_path
from local_backend.jobspec import Source

#: Finds the connection that {"id"|"name"|"href": ...} means, for the submitting user. Raises DataError.
Find = Callable[[Mapping[str, str]], Connection]


@dataclass
class Asked:
    """What a submission says about its data. `data_dir` is DATA_DIR, as far as it is known; `shown` is what everybody
    sees who may see the exec; `secrets` are those of connections that were written out, by the number of their source
    in `sources`, from 1. `notes` are what the submitter may not have meant."""

    data_dir: str
    sources: tuple[Source, ...] = ()
    shown: list[Any] = field(default_factory=list)
    secrets: dict[int, dict[str, str]] = field(default_factory=dict, repr=False)
    notes: list[str] = field(default_factory=list)


def understand(sources: Sequence[Any], roots: fs.DataRoots, find: Find) -> Asked:
    """Check the data sources of a submission. Nothing is connected to. Raises DataError with a sentence that says which
    one is wrong, and how."""
    _check_schema(list(sources))
    found: list[Source] = []
    asked = Asked("")
    names = Names(sources)
    for number, source in enumerate(sources, 1):
        try:
            for one, secrets in _understood(source, roots, find):
                found.append(replace(one, name=names.of(source, one.name)))
                if secrets:
                    asked.secrets[len(found)] = secrets
        except DataError as problem:
            raise type(problem)(f"data source {number}: {problem}") from None
        asked.notes += [f"data source {number}: {note}" for note in _notes(source, found[-1])]
        asked.shown.append(_shown(source))
    asked.sources, asked.data_dir = tuple(found), found[0].path
    return asked


def _check_schema(sources: list[Any]) -> None:
    from jsonschema import Draft202012Validator

    faults = Draft202012Validator(wire.SCHEMA).iter_errors(sources)
    problem = wire.mistyped(sources) or next(map(wire.explained, faults), None)
    if problem is not None:
        raise DataError(problem)


def _understood(source: Mapping[str, Any], roots: fs.DataRoots, find: Find) -> Iterator[tuple[Source, dict[str, str]]]:
    """What one entry means, each with the secrets in it: one source, or one for every path that lies here already."""
    kind, location = source[wire.TYPE], source.get(wire.LOCATION, {})
    if kind == wire.DATA_ASSET and not named(location):
        raise DataError("this server keeps no assets of projects; give the path of the file (location.path), or name a "
                        "connection (type connection)")
    if kind in (wire.FS, wire.DATA_ASSET):
        for path in fs.places(location, roots):
            yield Source(after_path(path), kind, wire.MOUNT, path), {}
        return
    if kind == wire.CONTAINER and not source.get(wire.CONNECTION) and wire.ASSET not in source:
        raise DataError("there is no default bucket on this server; name a connection (type connection)")
    if location and set(location) <= {wire.ID, wire.HREF}:
        raise DataError(f"its location has '{next(iter(location))}' alone, which names an asset of a project, and this "
                        "server keeps none; say what of the connection is meant: bucket and paths, or schema_name "
                        "and table_name")
    yield from _elsewhere(source, location, roots, find)


def _elsewhere(
    source: Mapping[str, Any], location: Mapping[str, Any], roots: fs.DataRoots, find: Find
) -> Iterator[tuple[Source, dict[str, str]]]:
    connection = {name: _plain(value) for name, value in source.get(wire.CONNECTION, {}).items()}
    if wire.ASSET in source:
        connection = {wire.ID: source[wire.ASSET][wire.ASSET_ID]}
    written = wire.TYPE in connection or (source[wire.TYPE] == wire.S3 and not set(wire.REFERENCES) & set(connection))
    if written:
        kind = kinds.find(connection.pop(wire.TYPE, source[wire.TYPE]))
        connection.pop(wire.NAME, None)
        values = kind.check(connection)
        secret = {item.name for item in kind.fields if item.secret}
        public = {wire.TYPE: kind.name} | {name: text for name, text in values.items() if name not in secret}
    else:
        public = {name: text for name, text in connection.items() if name in wire.REFERENCES}
        if not public:
            raise DataError("'connection' says neither which one is meant ('name' or 'id') nor of what kind it is "
                            "('type' with its values)")
        known = find(public)
        kind, secret = kinds.find(known.kind), set()
        values = kind.check(known.values)
    kind.check_location(location)
    if issubclass(kind.family, Mounted):
        for key in (wire.ACCESS, wire.TARGET):
            if source.get(key, wire.MOUNT) != wire.MOUNT:
                raise DataError(f"a storage volume is mounted, and nothing of it fetched: leave '{key}' out")
        for path in fs.mounted(values, location, roots):
            yield Source(after_path(path), source[wire.TYPE], wire.MOUNT, path), {}
        return
    access = source.get(wire.ACCESS, wire.DOWNLOAD)
    if access == wire.MOUNT:
        raise DataError(f"what {kind.title} has cannot be mounted: 'access' must be download or stream")
    if access == wire.STREAM and not issubclass(kind.family, FileFamily):
        raise DataError(NO_STREAM)
    yield Source(
        after_location(location, kind.name), source[wire.TYPE], access,
        kind=kind.name, connection=public, location=dict(location),
        target=_target(source.get(wire.TARGET, wire.LOCAL), kind.cached(access), roots),
    ), {name: text for name, text in values.items() if name in secret}


def _target(target: Any, cached: bool, roots: fs.DataRoots) -> str:
    place = str(fs.volume(target[wire.VOLUME], roots)) if isinstance(target, dict) else str(target)
    if cached and place != wire.LOCAL:
        fs.cache_of(place, roots)
    return place


def _notes(source: Mapping[str, Any], found: Source) -> Iterator[str]:
    """What of an entry reads as if it named something, and does not."""
    location = source.get(wire.LOCATION, {})
    if found.kind and not issubclass(kinds.find(found.kind).family, FileFamily):
        return
    empty = next((key for key in wire.PATH_KEYS if key in location), None)
    if empty is not None and not named(location):
        yield f"'{empty}' names nothing: all of {found.path or 'it'} is meant"
    elif found.kind and not location and {item.name for item in kinds.find(found.kind).fields} & set(wire.TOPS):
        yield "its location is empty: all that its connection leads to is meant"


def _plain(value: Any) -> str:
    """A value of a connection as text: clients write ports as numbers."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _shown(source: Mapping[str, Any]) -> dict[str, Any]:
    """A source as it was given, with what is secret masked: of a connection that is written out, all but its type and
    what its kind calls public."""
    shown = dict(source)
    connection = source.get(wire.CONNECTION)
    if isinstance(connection, dict):
        public = set(wire.REFERENCES) | {wire.TYPE} | _public(connection.get(wire.TYPE, source[wire.TYPE]))
        shown[wire.CONNECTION] = {
            name: (masked_place(value) if isinstance(value, str) else value) if name in public else MASK
            for name, value in connection.items()
        }
    if isinstance(source.get(wire.LOCATION), dict):
        shown[wire.LOCATION] = {
            name: masked_place(value) if isinstance(value, str) and "://" in value else value
            for name, value in source[wire.LOCATION].items()
        }
    return shown


def _public(kind: str) -> set[str]:
    try:
        fields = kinds.find(kind).fields
    except DataError:
        return set()
    return {name for item in fields if not item.secret for name in (item.name, *item.aliases)}
