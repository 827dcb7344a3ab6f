"""MongoDB: a collection, or the documents that a filter finds in it."""

from __future__ import annotations

import contextlib
import difflib
import itertools
import tempfile
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlicmd.contract import strict_json
from dlicmd.contract.data_sources import COLLECTION, DATABASE_NAME, QUERY, SCHEMA_NAME, TABLE_NAME
from local_backend.data.columns import batches
from local_backend.data.errors import DataError, DataUnavailable
from local_backend.data.kind import Extent, Field, Kind, SourceTable, TableFamily
from local_backend.data.kinds.documents import SAMPLE, Documents
from local_backend.data.kinds.sql import DATABASE, HOST, PASSWORD, port
from local_backend.data.locations import other_case

if TYPE_CHECKING:
    import pyarrow

_PATIENCE = 10_000
_NO_FILTER = "'query' is not a filter of MongoDB, such as {\"age\": {\"$gt\": 20}}"
#: Operators that run programs on the server.
_PROGRAMS = frozenset({"$where", "$function", "$accumulator"})
#: Codes of temporary errors: not reachable, shutting down, no primary, busy.
_PASSING = frozenset({6, 7, 89, 91, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436, 50, 175, 237})


class Mongodb(TableFamily):
    """Reads one server, and no other servers that it refers to. A collection has no consistent state: if a document
    changes meanwhile, either version is read. In a location, a schema means a database."""

    keys = (COLLECTION, TABLE_NAME, DATABASE_NAME, SCHEMA_NAME, QUERY)
    databases = (DATABASE_NAME, SCHEMA_NAME)

    def check(self, location: Mapping[str, Any]) -> None:
        self.check_keys(location)
        _collection(location)
        _filter(location.get(QUERY))

    @staticmethod
    def typed(name: str) -> dict[str, str]:
        return {COLLECTION: name}

    def test(self) -> None:
        with self._database() as database:
            database.command("ping")
            database.list_collection_names()

    def table(self, location: Mapping[str, Any]) -> SourceTable:
        with self._database() as database:
            return SourceTable(Documents(itertools.islice(_found(database, location), SAMPLE)).schema)

    def batches(self, location: Mapping[str, Any], most_rows: int | None = None) -> Iterator[pyarrow.RecordBatch]:
        with self._database() as database:
            found = _found(database, location)
            sample = list(itertools.islice(found, SAMPLE))
            documents = Documents(sample)
            rows = itertools.islice(itertools.chain(sample, found), most_rows)
            yield from batches(lambda wish: [documents.row(one) for one in itertools.islice(rows, wish)],
                               documents.schema)

    def extent(self, location: Mapping[str, Any], seconds: float) -> Extent:
        import pymongo

        with self._database() as database:
            name, wanted = _kept(database, _collection(location)), _filter(location.get(QUERY))
            size, most = None, int(seconds * 1000)
            # Not every user may run `collStats`, and a view has no size.
            with contextlib.suppress(pymongo.errors.OperationFailure):
                size = None if wanted else database.command("collStats", name).get("size")
            with contextlib.suppress(pymongo.errors.ExecutionTimeout):
                return Extent(database[name].count_documents(wanted, maxTimeMS=most), size=size)
            return Extent(size=size) if wanted else \
                Extent(database[name].estimated_document_count(maxTimeMS=most), True, size)

    @contextlib.contextmanager
    def _database(self) -> Iterator[Any]:
        import pymongo
        from bson import CodecOptions
        from bson.binary import UuidRepresentation
        from bson.codec_options import DatetimeConversion

        with contextlib.ExitStack() as stack:
            try:
                client = stack.enter_context(pymongo.MongoClient(**self._arguments(stack)))
                options: CodecOptions[Any] = CodecOptions(
                    tz_aware=True, uuid_representation=UuidRepresentation.STANDARD,
                    datetime_conversion=DatetimeConversion.DATETIME_AUTO)
                yield client.get_database(self.values["database"], codec_options=options)
            except (pymongo.errors.PyMongoError, OSError) as problem:
                raise self._trouble(problem) from None

    def _arguments(self, stack: contextlib.ExitStack) -> dict[str, Any]:
        values = self.values
        host, number = values["host"], int(values.get("port") or self.kind.options["port"])
        self.addresses(host, number)
        arguments: dict[str, Any] = {
            "host": host, "port": number, "directConnection": True, "serverSelectionTimeoutMS": _PATIENCE,
            "connectTimeoutMS": _PATIENCE, "appname": "dlicmd", "tls": self.tls_wish() is True,
        }
        if values.get("username"):
            arguments |= {"username": values["username"], "password": values.get("password", ""),
                          "authSource": values.get("auth_database") or "admin"}
        if values.get("ssl_certificate"):
            file = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mongodb-"))) / "root.pem"
            file.write_text(values["ssl_certificate"], encoding="utf-8")
            arguments |= {"tls": True, "tlsCAFile": str(file)}
        return arguments

    def _trouble(self, problem: Exception) -> DataError:
        from pymongo import errors

        passes = isinstance(problem, errors.ConnectionFailure | OSError) or getattr(problem, "code", None) in _PASSING
        # A retry fails again if the server requires a certificate or has no valid one.
        if "CERTIFICATE_VERIFY_FAILED" in str(problem):
            passes = False
        return (DataUnavailable if passes else DataError)(f"{self.kind.title}: {self.without_secrets(problem)}")


def _found(database: Any, location: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the documents that a location names. Raises DataError."""
    wanted = _filter(location.get(QUERY))
    name = _kept(database, _collection(location))
    with database[name].find(wanted) as cursor:
        for document in cursor:
            yield {key: _plain(value) for key, value in document.items()}


def _collection(location: Mapping[str, Any]) -> str:
    """Return the name of the collection. Raises DataError."""
    name = location.get(COLLECTION, location.get(TABLE_NAME))
    if not isinstance(name, str) or not name or len(name) > 255 or "\0" in name:
        raise DataError(f"the location needs '{COLLECTION}', the name of a collection")
    if location.get(TABLE_NAME, name) != name:
        raise DataError(f"the location names two collections, in '{COLLECTION}' and in '{TABLE_NAME}'")
    return name


def _kept(database: Any, name: str) -> str:
    """Return the name of the collection on the server. If none has this spelling, return the only one that differs in
    case alone. Raises DataError."""
    names = database.list_collection_names()
    found = name if name in names else other_case(name, names)
    if found is None:
        near = difflib.get_close_matches(name, names, 1)
        raise DataError(f"there is no collection '{name}' in the database '{database.name}'"
                        + (f"; did you mean '{near[0]}'?" if near else ""))
    return found


def _filter(query: Any) -> dict[str, Any]:
    """Return the filter, which may be the text of a JSON object. Raises DataError."""
    if isinstance(query, str) and query.strip():
        try:
            query = strict_json.read(query)
        except ValueError as problem:
            raise DataError(f"{_NO_FILTER}: it {problem}") from None
    if not query:
        return {}
    if not isinstance(query, dict):
        raise DataError(_NO_FILTER)
    _check_reads(query)
    return query


def _check_reads(part: Any) -> None:
    for key, value in part.items() if isinstance(part, dict) else enumerate(part):
        if key in _PROGRAMS:
            raise DataError(f"'query' has {key}, which runs a program on the server; remove it")
        if isinstance(value, dict | list):
            _check_reads(value)


def _plain(value: Any) -> Any:
    """Return a value as a JSON value, bytes or a datetime."""
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, bytes):
        return bytes(value)
    known = value is None or isinstance(value, bool | int | float | str | datetime)
    return value if known else str(value)


MONGODB = Kind(
    "mongodb", "MongoDB", Mongodb,
    fields=(
        HOST, port(27017), DATABASE,
        Field("username", "user that reads the data", aliases=("user", "user_name")), PASSWORD,
        Field("auth_database", "database that authenticates the user (default admin)",
              aliases=("authdatabase", "auth_source")),
        Field("ssl", "true: use TLS; the certificate must match the host"),
        Field("ssl_certificate", "certificate of the certificate authority of the server, in PEM format"),
    ),
    aliases=("databases-for-mongodb", "ibm-cloud-databases-for-mongodb", "compose-mongodb"),
    extra="mongodb", modules=("pymongo", "pyarrow"), options={"port": 27017},
    tested="no real server: a stand-in with the same protocol",
)
