"""Data sources of a submission: their names on the wire, their JSON Schema, and errors about them in one sentence.

Client and server check the same schema. A `description` in it says what a value must be. A `$comment` is a whole
sentence about what is missing.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from dlicmd.contract import slips
from dlicmd.contract.secret import looks_secret, secret_names

# Keys of a data source
TYPE = "type"
NAME = "name"
CONNECTION = "connection"
ASSET = "asset"
LOCATION = "location"
ACCESS = "access"
TARGET = "target"

# Values of `type`
FS = "fs"
CONNECTED = "connection"
CONNECTION_ASSET = "connection_asset"
DATA_ASSET = "data_asset"
CONTAINER = "container"
S3 = "s3"
TYPES = (FS, CONNECTED, CONNECTION_ASSET, DATA_ASSET, CONTAINER, S3)

# Values of `access`
MOUNT = "mount"
DOWNLOAD = "download"
STREAM = "stream"

# Values of `target`; the third form is {"volume": NAME}
LOCAL = "local"
SHARED = "shared"
VOLUME = "volume"

# Keys of `connection` that select a connection. A connection that is written out has its values beside them.
ID = "id"
HREF = "href"
ASSET_ID = "asset_id"
#: The keys that select a connection which the server knows, in order of precedence.
REFERENCES = (ID, HREF, NAME)

# Keys of `location`
PATHS = "paths"
PATH = "path"
FILE_NAME = "file_name"
#: Keys that name paths: the first key that names any counts.
PATH_KEYS = (PATHS, PATH, FILE_NAME)
BUCKET = "bucket"
CONTAINER_NAME = "container"
FILE_SYSTEM = "file_system"
SHARE = "share"
#: Keys for the top level of a file server's paths. A connection may have them, too, as default for a location without
#: one.
TOPS = (BUCKET, CONTAINER_NAME, FILE_SYSTEM, SHARE)
URL = "url"
TABLE_NAME = "table_name"
SCHEMA_NAME = "schema_name"
CATALOG_NAME = "catalog_name"
DATABASE_NAME = "database_name"
KEYSPACE = "keyspace"
COLLECTION = "collection"
QUERY = "query"

#: Keys that other products put beside ours, in a source and in its location. The schema accepts and ignores them.
FOREIGN = (ID, "schema", HREF, "description", "format", "metadata")

#: The most data sources of a submission, as written, and the most paths in all of them.
MOST = 100
MOST_PATHS = 10_000
#: The most characters of a text in a data source: a query may be long.
LONGEST = 20_000


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": LONGEST, "description": description}


def _paths(description: str) -> dict[str, Any]:
    text = {"type": "string", "maxLength": LONGEST, "description": "a path"}
    return {"type": ["string", "array"], "maxLength": LONGEST, "maxItems": MOST_PATHS, "items": text,
            "description": description}


def _for(types: Sequence[str], then: dict[str, Any]) -> dict[str, Any]:
    """Return a rule for sources of these types alone."""
    return {"if": {"properties": {TYPE: {"enum": list(types)}}, "required": [TYPE]}, "then": then}


def _keys(known: Iterable[str]) -> dict[str, Any]:
    """Return a schema for keys. The schema accepts `known` keys, and other keys that look neither like a secret nor
    like a known key in another spelling. `_mistyped` finds mistakes that a pattern cannot express."""
    slips = "|".join(
        "".join(f"[{letter.upper()}{letter}]" if letter.isalpha() else "[_-]?" for letter in key[:-1])
        + f"([{key[-1].upper()}{key[-1]}][Ss]?)?"
        for key in known if len(key) > 3 and key not in FOREIGN
    )
    return {
        "anyOf": [{"enum": [*dict.fromkeys([*known, *FOREIGN])]},
                  {"not": {"anyOf": [{"pattern": secret_names()}, {"pattern": f"^({slips})$"}]}}],
        "description": "without keys that look like a secret or like a misspelled key",
    }


_VALUE = {"type": ["string", "number", "boolean"], "description": "a text, a number, true or false"}

_LOCATION: dict[str, Any] = {
    "type": "object",
    "description": 'a JSON object, such as {"paths": "mnist"}',
    "properties": {
        PATHS: _paths("a path, several separated by commas, or a list of paths"),
        PATH: _paths("a path, several separated by commas, or a list of paths"),
        FILE_NAME: _paths("the name of a file, several separated by commas, or a list of names"),
        VOLUME: _text("the name of a storage volume"),
        BUCKET: _text("the name of a bucket"),
        CONTAINER_NAME: _text("the name of a container"),
        FILE_SYSTEM: _text("the name of a file system of a data lake"),
        SHARE: _text("the name of a file share"),
        URL: _text("a URL"),
        SCHEMA_NAME: _text("the name of a database schema"),
        TABLE_NAME: _text("the name of a table"),
        CATALOG_NAME: _text("the name of a catalog"),
        DATABASE_NAME: _text("the name of a database"),
        KEYSPACE: _text("the name of a keyspace"),
        COLLECTION: _text("the name of a collection"),
        QUERY: _text("a query that only reads; for documents a filter, as a JSON object or its text")
        | {"type": ["string", "object"]},
        HREF: _text("the address of an asset"),
        ID: _text("the id of an asset"),
    },
}
_LOCATION["propertyNames"] = _keys([*_LOCATION["properties"]])

#: Schema of a location for data on the server: only these keys have a meaning, and no other key is accepted.
_HERE: dict[str, Any] = {
    "properties": {key: {} for key in (*PATH_KEYS, VOLUME, *FOREIGN)},
    "additionalProperties": {"not": {}, "description": f"omitted: data of this type has only "
                                                       f"{', '.join(PATH_KEYS)} and {VOLUME}"},
}

_SOURCE: dict[str, Any] = {
    "type": "object",
    "description": 'a JSON object, such as {"type": "fs", "location": {"paths": "mnist"}}',
    "required": [TYPE],
    "properties": {
        TYPE: {"enum": list(TYPES), "description": f"one of {', '.join(TYPES)}"},
        NAME: {"type": "string", "minLength": 1, "maxLength": 100, "description": "a name of at most 100 characters"},
        CONNECTION: {
            "type": "object",
            "description": 'a JSON object: {"name": NAME} or {"id": ID} of a connection on the server, or '
                           '{"type": KIND, ...} with its values',
            "properties": {
                ID: _text("the id of a connection"), NAME: _text("the name of a connection"),
                HREF: _text("the address of a connection"), TYPE: _text("a kind of connection"),
            },
            "additionalProperties": _VALUE,
        },
        ASSET: {
            "type": "object",
            "description": 'a JSON object: {"asset_id": ID}',
            "required": [ASSET_ID],
            "properties": {ASSET_ID: _text("the id of a connection"), "project_id": _text("the id of a project")},
        },
        LOCATION: _LOCATION,
        ACCESS: {"enum": [MOUNT, DOWNLOAD, STREAM], "description": "one of mount, download, stream"},
        TARGET: {
            "description": 'local, shared or {"volume": NAME}',
            "anyOf": [
                {"enum": [LOCAL, SHARED]},
                {"type": "object", "required": [VOLUME], "properties": {VOLUME: _text("the name of a storage volume")},
                 "additionalProperties": False},
            ],
        },
    },
    "allOf": [
        _for([FS, DATA_ASSET], {"properties": {
            ACCESS: {"enum": [MOUNT], "description": "mount: data of this type is already on the server"},
            TARGET: {"not": {}, "description": "omitted: data of this type is already on the server"},
            CONNECTION: {"maxProperties": 0, "description": "omitted: data of this type is already on the server"},
            ASSET: {"not": {}, "description": "omitted: data of this type is already on the server"},
            LOCATION: _HERE,
        }}),
        _for([CONNECTED, CONNECTION_ASSET], {
            "anyOf": [{"required": [CONNECTION]}, {"required": [ASSET]}], "required": [LOCATION],
            "$comment": "needs a 'connection' (or an 'asset') that says where the data is",
        }),
        _for([S3], {"required": [CONNECTION, LOCATION], "properties": {LOCATION: {"required": [BUCKET]}}}),
    ],
}

_SOURCE["propertyNames"] = _keys([*_SOURCE["properties"]])

#: JSON Schema of the list that --data-source takes and that the submission carries as `dataSource`.
SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "dataSource",
    "type": "array",
    "maxItems": MOST,
    "description": f"a list of at most {MOST} data sources",
    "items": _SOURCE,
}


class Fault(Protocol):
    """An error of a JSON Schema validator, with the attributes that this module uses."""

    validator: Any
    validator_value: Any
    instance: Any
    schema: Any

    @property
    def absolute_path(self) -> Iterable[str | int]:
        """Keys and positions that lead to `instance`."""


def beyond_schema(sources: Any) -> str | None:
    """Return the error that the schema cannot express, or not in such words; None for none."""
    return _mistyped(sources) or _crowded(sources)


def paths_in(value: Any) -> list[str]:
    """Return the paths in a value of one of PATH_KEYS: a text with commas between them, or a list. Values that are no
    text are left out."""
    words = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else ()
    return [word.strip() for word in words if isinstance(word, str) and word.strip()]


def _crowded(sources: Any) -> str | None:
    """Return the error about too many paths, or None."""
    count = 0
    for source in sources if isinstance(sources, list) else ():
        location = source.get(LOCATION) if isinstance(source, dict) else None
        named = (paths_in(location.get(key)) for key in PATH_KEYS) if isinstance(location, dict) else ()
        count += len(next(filter(None, named), ()))
    return None if count <= MOST_PATHS else (f"the data sources have {count:,} paths, but at most {MOST_PATHS:,} "
                                             "are allowed; name the folders that contain them")


def _mistyped(sources: Any) -> str | None:
    """Return the error about a key that looks like another key, or like a secret where none is allowed; None for
    none."""
    for number, source in enumerate(sources if isinstance(sources, list) else (), 1):
        if not isinstance(source, dict):
            continue
        parts = [("", source, _SOURCE), (LOCATION + ".", source.get(LOCATION), _LOCATION)]
        for before, part, schema in parts:
            known = [*schema["properties"], *FOREIGN]
            for key in part if isinstance(part, dict) else ():
                near = slips.meant(key, schema["properties"]) if key not in known else None
                if near:
                    return f"data source {number}: unknown key '{before}{_short(key)}'; did you mean '{before}{near}'?"
                if key not in known and looks_secret(key):
                    return (f"data source {number}: '{before}{_short(key)}' is outside of '{CONNECTION}', so it is "
                            "neither used nor kept secret; put credentials into the connection")
    return None


def explained(fault: Fault) -> str:
    """Return a sentence about one error: which source, which key, what is expected. Values of connections are not
    shown."""
    path = list(fault.absolute_path)
    where = f"data source {int(path[0]) + 1}" if path else "the data sources"
    key = ".".join(_short(str(step)) for step in path[1:])
    if fault.validator == "required":
        missing = next(name for name in fault.validator_value if name not in fault.instance)
        expected = _description(fault.schema, missing, path)
        name = f"{key}.{missing}" if key else missing
        return f"{where}: '{name}' is missing" + (f"; expected {expected}" if expected else "")
    if "$comment" in fault.schema:
        return f"{where} {fault.schema['$comment']}"
    expected = fault.schema.get("description", "something else")
    if fault.validator == "maxLength":
        return f"{where}: {key!r} must be {expected}, of at most {LONGEST:,} characters, not {len(fault.instance):,}"
    near = difflib.get_close_matches(str(fault.instance), fault.validator_value, 1, 0.6) \
        if fault.validator == "enum" else []
    hint = f"; did you mean '{near[0]}'?" if near else ""
    shown = "" if CONNECTION in path or fault.validator == "not" else f", not {_shown(fault.instance)}"
    return f"{where}{f': {key!r}' if key else ''} must be {expected}{shown}{hint}"


def _description(schema: Mapping[str, Any], name: str, path: Sequence[str | int]) -> str:
    """Return the description of a missing key, from the schema of the object that lacks it."""
    whole = _LOCATION if path[-1:] == [LOCATION] else _SOURCE if len(path) == 1 else schema
    found = whole.get("properties", {}).get(name, {})
    return str(found.get("description", ""))


def _shown(value: Any) -> str:
    """Return a wrong value in a few characters."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else f"a list of {len(value)}"
    return _short(json.dumps(value))


def _short(text: str) -> str:
    clean = "".join(character if character.isprintable() else "?" for character in text)
    return clean if len(clean) <= 80 else clean[:79] + "…"
