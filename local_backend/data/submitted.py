"""Checks the data sources of a submission, names them, and turns them into the sources of a job."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dlicmd.contract import data_sources as wire
from dlicmd.contract.secret import MASK, masked_place, masked_sources
from local_backend.data import registry, storage
from local_backend.data.errors import DataError
from local_backend.data.kind import Connection, FileFamily, Kind, Mounted, TableFamily
from local_backend.data.locations import named
from local_backend.workload import DataSource

#: Longest derived name, in characters.
_LONGEST = 100
#: Unicode categories of invisible characters, and invisible characters that some scripts need.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINERS = "\u200c\u200d"
_TABLES = (wire.TABLE_NAME, wire.COLLECTION)

#: Finds the connection that {"id"|"name"|"href": ...} refers to, for the submitting user. Raises DataError.
Find = Callable[[Mapping[str, str]], Connection]


@dataclass
class SubmittedData:
    """The checked data sources of a submission. `data_dir` is DATA_DIR, as far as it is known. Every user who may see
    the exec sees `shown`. `secrets` belong to written-out connections, by the number of their source in `sources`, from
    1. `notes` name input that the submitter may not have meant. `new` are folders that must be created."""

    data_dir: str
    sources: tuple[DataSource, ...] = ()
    shown: list[Any] = field(default_factory=list)
    secrets: dict[int, dict[str, str]] = field(default_factory=dict, repr=False)
    notes: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)


def understand(sources: Sequence[Any], roots: storage.DataRoots, find: Find, *, typed: bool = False) -> SubmittedData:
    """Check the data sources of a submission, without connecting to a server. Raises DataError with a sentence that
    says which source is wrong, and how. With `typed`, a `path` names a table if the kind has tables: users type
    CONNECTION:PATH for every kind."""
    _check_schema(list(sources))
    found: list[DataSource] = []
    asked = SubmittedData("")
    names = SourceNames(sources)
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
    source: Mapping[str, Any], roots: storage.DataRoots, find: Find, typed: bool
) -> Iterator[tuple[DataSource, dict[str, str]]]:
    """Yield the sources that one entry means, each with its secrets: one source, or one per path on this machine."""
    kind, location = source[wire.TYPE], source.get(wire.LOCATION, {})
    if kind == wire.DATA_ASSET and not named(location):
        raise DataError("this server has no project assets; give the path of the file (location.path), or name a "
                        "connection (type connection)")
    if kind in (wire.FS, wire.DATA_ASSET):
        # A data asset names existing data; only a path of type fs may be new.
        for path in storage.places(location, replace(roots, create=roots.create and kind == wire.FS)):
            yield DataSource(after_path(path), kind, wire.MOUNT, path), {}
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
        for path in storage.mounted(family.values, location, roots):
            yield DataSource(after_path(path), source[wire.TYPE], wire.MOUNT, path), {}
        return
    access = source.get(wire.ACCESS, wire.DOWNLOAD)
    if access == wire.MOUNT:
        raise DataError(f"data of {kind.title} cannot be mounted: 'access' must be download or stream")
    if access == wire.STREAM:
        family.storage()
    said = {key: value for key, value in location.items() if key not in wire.FOREIGN}
    yield DataSource(
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
        kind = registry.find(connection.pop(wire.TYPE, source[wire.TYPE]))
        connection.pop(wire.NAME, None)
        values = kind.check(connection | kind.database(location))
        hidden = {item.name for item in kind.fields if item.secret}
        public = {wire.TYPE: kind.name} | {name: text for name, text in values.items() if name not in hidden}
        return _Connection(kind, values, public, {name: text for name, text in values.items() if name in hidden})
    public = {name: text for name, text in connection.items() if name in wire.REFERENCES}
    if not public:
        raise DataError("'connection' names no connection; give its 'name' or 'id', or a 'type' with its values")
    known = find(public)
    kind = registry.find(known.kind)
    if wire.NAME in public and known.reference:
        # Another user cannot replace the connection of a pending job by one with the same name.
        public = {wire.NAME: known.reference}
    return _Connection(kind, {**known.values, **kind.database(location)}, public)


def _target(target: Any, cached: bool, roots: storage.DataRoots) -> str:
    place = str(storage.volume(target[wire.VOLUME], roots)) if isinstance(target, dict) else str(target)
    if cached and place != wire.LOCAL:
        storage.cache_of(place, roots)
    return place


def _notes(source: Mapping[str, Any], sources: Sequence[DataSource]) -> Iterator[str]:
    """Yield notes about keys that seem to name something but do not, and about paths that programs cannot tell
    apart."""
    location, found = source.get(wire.LOCATION, {}), sources[-1]
    yield from map(divided, [one.path for one in sources if os.pathsep in one.path][:1])
    keys = [key for key in wire.PATH_KEYS if wire.paths_in(location.get(key))]
    for key in keys[1:]:
        if wire.paths_in(location[key]) != wire.paths_in(location[keys[0]]):
            yield f"'{key}' is ignored because '{keys[0]}' names the paths"
    if found.kind and not issubclass(registry.find(found.kind).family, FileFamily):
        return
    empty = next((key for key in wire.PATH_KEYS if key in location), None)
    if empty is not None and not named(location):
        yield f"'{empty}' names no path: the job gets all data of {found.path or 'the connection'}"
    elif found.kind and not location and {item.name for item in registry.find(found.kind).fields} & set(wire.TOPS):
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
        fields = registry.find(kind).fields
    except DataError:
        return set()
    return {name for item in fields if not item.secret for name in (item.name, *item.aliases)}


class SourceNames:
    """The names of the sources of one submission. Derived names differ from given names and from each other."""

    def __init__(self, sources: Sequence[Mapping[str, Any]]) -> None:
        """Collect the given names. Raises DataError when two sources have the same name, and for a name with invisible
        characters."""
        self._taken: set[str] = set()
        given: dict[str, int] = {}
        for number, source in enumerate(sources, 1):
            if wire.NAME in source:
                name = source[wire.NAME]
                if any(map(_unseen, name)):
                    raise DataError(f"data source {number}: its name {name!a} contains invisible characters; remove "
                                    "them")
                first = given.setdefault(_same(name), number)
                if first != number:
                    raise DataError(f"data source {number}: data source {first} already has the name '{name}'; "
                                    "give each source a different name")
        self._given = set(given)
        #: Name → last number that was appended to it: thousands of sources may have the same name.
        self._last: dict[str, int] = {}

    def of(self, source: Mapping[str, Any], what: str) -> str:
        """Return a name for data of a source: the source's own name, or else `what`. A repeated name gets a number, as
        in `mnist-2`."""
        own = source.get(wire.NAME)
        name = wish = what if own is None else own
        count = self._last.get(wish, 1)
        while _same(name) in self._taken or (_same(name) in self._given and name != own):
            count += 1
            name = f"{wish}-{count}"
        self._last[wish] = count
        self._taken.add(_same(name))
        return name


def after_path(path: str) -> str:
    """Return the name that is derived from a path: its last part, or `data`."""
    return _visible(path.rstrip("/").rpartition("/")[2]) or "data"


def after_location(location: Mapping[str, Any], kind: str) -> str:
    """Return the name that is derived from a location of a connection. The first of these counts: the table (or
    `query`), the only path, the bucket, the first path or another value, the kind of connection."""
    table = next((location[key] for key in _TABLES if location.get(key)), "query" if location.get(wire.QUERY) else "")
    if table:
        return _visible(str(table)) or kind
    paths = [path for path in named(location) if path.strip("/")]
    top = next((str(location[key]) for key in wire.TOPS if location.get(key)), "")
    if top and len(paths) != 1:
        return after_path(top)
    other = (str(value) for key, value in location.items() if key not in wire.PATH_KEYS and value)
    found = next(iter(paths), "") or next(other, "") or kind
    return after_path(masked_place(found) if "://" in found else found)


def _same(name: str) -> str:
    """Return the same key for names that look the same: an ö may also be written as an o and two dots."""
    return unicodedata.normalize("NFC", name)


def _unseen(character: str) -> bool:
    return unicodedata.category(character) in _UNSEEN and character not in _JOINERS


def _visible(text: str) -> str:
    return "".join("-" if _unseen(character) else character for character in text[:_LONGEST]).strip()
