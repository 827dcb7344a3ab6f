"""PostgreSQL, through ADBC: rows arrive in COPY's binary form and become columns without a Python object per value."""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from local_backend.data.errors import DataError, DataUnavailable
from local_backend.data.kind import Extent, Field, Kind, SourceTable, TableFamily
from local_backend.data.locations import FileSelection, check_query, other_case, selection_of

if TYPE_CHECKING:
    import pyarrow

_BATCH_BYTES = 8 * 2**20
_CONNECT_SECONDS = 10
#: Types that arrive unchanged. Any other type except numeric and lists of these is requested as text.
_PLAIN = frozenset({"bool", "int2", "int4", "int8", "float4", "float8", "text", "varchar", "bpchar", "name", "bytea",
                    "date", "timestamp", "timestamptz", "time"})
#: SQLSTATEs, or their prefixes, of temporary errors: lost connections, no free connection, a server that stops or
#: starts, a standby that had to drop the state it was reading.
_PASSING = ("08", "53", "57P", "40001", "58030")
#: The same in words: while connecting, the library reports no SQLSTATE.
_PASSING_WORDS = re.compile(
    r"starting up|shutting down|recovery|too many clients|connection slots|not yet accepting", re.IGNORECASE)
_REFUSED_WORDS = re.compile(r"FATAL:|no password supplied|does not support SSL|certificate|invalid", re.IGNORECASE)
_BEGIN = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
#: First day and first microsecond that the server supports, from 1970 on. The server stores the two infinities as its
#: first and last number. The driver adds an offset, after which both are before these limits.
_FIRST = {"date32": -2_440_588, "timestamp": -210_866_803_200_000_000}


#: Relations with rows whose names equal the given name except for case; without a schema, relations of the search path.
_SAME = """SELECT n.nspname::text, c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND lower(c.relname) = lower($1::text)
    AND CASE $2::text WHEN '' THEN pg_table_is_visible(c.oid) ELSE lower(n.nspname) = lower($2::text) END"""
#: Bytes of a table with all its partitions.
_SIZE = """SELECT coalesce(sum(pg_table_size(relid)), pg_table_size(to_regclass($1::text)))::int8
    FROM pg_partition_tree(to_regclass($1::text))"""


@dataclass(frozen=True)
class _Column:
    """A column: the SQL that selects it, and its Arrow field."""

    sql: str
    field: pyarrow.Field


class Postgresql(TableFamily):
    """Each call has a connection of its own, and reads one state of the database."""

    def __init__(self, kind: Kind, values: Mapping[str, str]) -> None:
        super().__init__(kind, values)
        self._cursor: Any = None

    def test(self) -> None:
        with self._reading() as cursor:
            cursor.execute("SELECT 1")

    def table(self, location: Mapping[str, Any]) -> SourceTable:
        import pyarrow

        with self._reading() as cursor:
            what = _found(cursor, selection_of(location))
            return SourceTable(pyarrow.schema([column.field for column in self._columns(cursor, what)]))

    def batches(self, location: Mapping[str, Any], most_rows: int | None = None) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow

        with self._reading() as cursor:
            what = _found(cursor, selection_of(location))
            columns = self._columns(cursor, what)
            schema = pyarrow.schema([column.field for column in columns])
            limit = "" if most_rows is None else f" LIMIT {most_rows:d}"
            cursor.execute(f"SELECT {', '.join(column.sql for column in columns)} FROM {_source(what)}{limit}")
            for batch in cursor.fetch_record_batch():
                yield _cast(batch, schema)

    def extent(self, location: Mapping[str, Any], seconds: float) -> Extent:
        what, size = selection_of(location), None
        if not what.query:
            with self._reading() as cursor:
                what = _found(cursor, what)
                cursor.execute(_SIZE, (_source(what),))
                # A view takes no space.
                size = cursor.fetchone()[0] or None
        # An interrupted statement ends its transaction, so each attempt has a transaction of its own.
        with contextlib.suppress(DataError), self._reading() as cursor:
            cursor.execute(f"SET LOCAL statement_timeout = {seconds * 1000:.0f}")
            cursor.execute(f"SELECT count(*) FROM {_source(what)}")
            return Extent(cursor.fetchone()[0], size=size)
        with self._reading() as cursor:
            # The driver cannot copy the rows of EXPLAIN.
            cursor.adbc_statement.set_options(**{"adbc.postgresql.use_copy": "false"})
            cursor.execute(f"EXPLAIN (FORMAT JSON) SELECT * FROM {_source(what)}")
            return Extent(json.loads(cursor.fetchone()[0])[0]["Plan"]["Plan Rows"], True, size)

    def cancel(self) -> None:
        cursor = self._cursor
        if cursor is not None:
            # Between two statements there is nothing to cancel.
            with contextlib.suppress(Exception):
                cursor.adbc_cancel()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Any]:
        import pyarrow
        from adbc_driver_postgresql import dbapi

        with contextlib.ExitStack() as stack:
            try:
                connection = stack.enter_context(dbapi.connect(self._address(stack), autocommit=False))
            except dbapi.Error as problem:
                raise self._not_connected(problem) from None
            try:
                options = {"adbc.postgresql.batch_size_hint_bytes": str(_BATCH_BYTES)}
                self._cursor = stack.enter_context(connection.cursor(adbc_stmt_kwargs=options))
                self._cursor.execute(_BEGIN)
                yield self._cursor
            except dbapi.Error as problem:
                raise self._trouble(problem) from None
            except (OSError, pyarrow.ArrowException) as problem:
                # Errors while rows stream arrive through Arrow.
                raise self._lost(problem) from None
            finally:
                self._cursor = None

    def _address(self, stack: contextlib.ExitStack) -> str:
        """Return the connection string for libpq. The string must keep libpq from falling back to files of the user
        that runs the server."""
        host, port = self.values["host"], int(self.values.get("port") or self.kind.options["port"])
        words = {
            "host": host, "port": str(port), "dbname": self.values["database"], "user": self.values["username"],
            "password": self.values.get("password", ""), "passfile": "/nonexistent/pgpass", "gssencmode": "disable",
            "connect_timeout": str(_CONNECT_SECONDS), "client_encoding": "UTF8", "application_name": "dlicmd",
            # These values detect a dead server within a minute.
            "keepalives_idle": "30", "keepalives_interval": "10", "keepalives_count": "3",
            "sslmode": self.values.get("sslmode")
            or ("verify-full" if self.values.get("ssl_certificate") else "prefer"),
        }
        if not host.startswith("/"):
            # libpq checks certificates against `host` and connects to `hostaddr`, the address that was checked.
            addresses = self.addresses(host, port)
            words |= {"host": ",".join([host] * len(addresses)), "hostaddr": ",".join(addresses)}
        elif not self.loopback:
            raise DataError(f"{self.kind.title}: the server does not connect to Unix sockets of its own machine")
        if self.values.get("ssl_certificate"):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pg-")))
            (folder / "root.pem").write_text(self.values["ssl_certificate"], encoding="utf-8")
            words["sslrootcert"] = str(folder / "root.pem")
        return " ".join(f"{key}='{_escaped(value)}'" for key, value in words.items() if value)

    def _columns(self, cursor: Any, what: FileSelection) -> list[_Column]:
        schema = cursor.adbc_execute_schema(f"SELECT * FROM {_source(what)}")
        twice = [name for name in schema.names if schema.names.count(name) > 1]
        if twice or not schema.names:
            raise DataError(f"{what.title} has two columns '{twice[0]}'; rename one with AS" if twice
                            else f"{what.title} has no columns")
        return [_column(found) for found in schema]

    def _not_connected(self, problem: Exception) -> DataError:
        text = self.without_secrets(problem).removeprefix("IO: ")
        refused = _REFUSED_WORDS.search(text) and not _PASSING_WORDS.search(text)
        return (DataError if refused else DataUnavailable)(f"{self.kind.title}: {text}")

    def _trouble(self, problem: Any) -> DataError:
        state = str(getattr(problem, "sqlstate", "") or "")
        if not state.strip("\0 "):
            return self._lost(problem)
        text = f"{self.kind.title}: {self._said(problem)}"
        return (DataUnavailable if state.startswith(_PASSING) else DataError)(text)

    def _lost(self, problem: Exception) -> DataError:
        text = self._said(problem)
        # A server that closes the connection reports FATAL. After an ERROR, a retry would fail in the same way.
        told = "FATAL:" not in text and "ERROR:" in text and not _PASSING_WORDS.search(text)
        return (DataError if told else DataUnavailable)(f"{self.kind.title}: {text}")

    def _said(self, problem: Exception) -> str:
        """Return the message of the server, without the statement that the driver repeats."""
        return self.without_secrets(re.sub(r"\s*Query was:.*", "", str(problem), flags=re.DOTALL))


def _found(cursor: Any, what: FileSelection) -> FileSelection:
    """Return the requested table. If no table has this spelling, return the only one whose name differs in case alone.
    Raises DataError."""
    if what.query:
        return what
    cursor.execute(_SAME, (what.table, what.schema))
    found = {FileSelection(table, schema if what.schema else "", what.catalog) for schema, table in cursor.fetchall()}
    if what in found:
        return what
    titles = {one.title: one for one in found}
    other = other_case(what.title, titles)
    return titles[other] if other else what


def _source(what: FileSelection) -> str:
    """Return the text after FROM. A query in parentheses cannot write, whatever it contains."""
    if what.query:
        return f"({check_query(what.query)}) AS wanted"
    # The catalog is the connected database; without a schema after it, PostgreSQL would read it as a schema.
    return ".".join(_quoted(name) for name in (what.catalog if what.schema else "", what.schema, what.table) if name)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "\\'")


def _column(found: pyarrow.Field) -> _Column:
    import pyarrow

    metadata = found.metadata or {}
    name, kind = _quoted(found.name), metadata.get(b"POSTGRESQL:type", b"").decode()
    if kind == "numeric":
        return _Column(name, pyarrow.field(found.name, _decimal(int(metadata.get(b"POSTGRESQL:typmod", b"-1")))))
    if kind in _PLAIN:
        return _Column(name, pyarrow.field(found.name, found.type))
    if kind.removeprefix("_") in _PLAIN and pyarrow.types.is_list(found.type):
        item = pyarrow.field("item", found.type.value_type)
        return _Column(name, pyarrow.field(found.name, pyarrow.list_(item)))
    text = f"to_json({name})::text" if kind.startswith("_") or pyarrow.types.is_nested(found.type) else f"{name}::text"
    return _Column(f"{text} AS {name}", pyarrow.field(found.name, pyarrow.string()))


def _decimal(modifier: int) -> pyarrow.DataType:
    """Return a decimal for numeric(precision, scale); text for plain numeric, which may have any number of digits."""
    import pyarrow

    precision, scale = (modifier - 4) >> 16 & 0xFFFF, (modifier - 4) & 0x7FF
    if modifier < 0 or precision > 76 or scale > precision:
        return pyarrow.string()
    return pyarrow.decimal128(precision, scale) if precision <= 38 else pyarrow.decimal256(precision, scale)


def _cast(batch: pyarrow.RecordBatch, schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    import pyarrow

    arrays = []
    for column, wanted_field in zip(batch.columns, schema, strict=True):
        plain = column.storage if isinstance(column, pyarrow.ExtensionArray) else column
        _check_finite(wanted_field, plain)
        try:
            arrays.append(plain if plain.type.equals(wanted_field.type) else plain.cast(wanted_field.type))
        except pyarrow.ArrowException as problem:
            raise DataError(f"column '{wanted_field.name}' has a value that is not a valid {wanted_field.type}: "
                            f"{problem}; use a query that casts it") from None
    return pyarrow.RecordBatch.from_arrays(arrays, schema=schema)


def _check_finite(column: pyarrow.Field, values: pyarrow.Array) -> None:
    """Raise DataError when a date or timestamp is infinite."""
    import pyarrow
    import pyarrow.compute

    first = _FIRST.get(str(values.type).partition("[")[0])
    if first is None or len(values) == values.null_count:
        return
    numbers = values.view(pyarrow.int32() if pyarrow.types.is_date32(values.type) else pyarrow.int64())
    if pyarrow.compute.min(numbers).as_py() < first:
        raise DataError(f"column '{column.name}' has an infinite time, which only PostgreSQL supports; use a query "
                        f"that replaces it, such as NULLIF({_quoted(column.name)}, 'infinity')")


POSTGRESQL = Kind(
    "postgresql", "PostgreSQL", Postgresql,
    fields=(
        Field("host", "name or address of the server, or the folder of its socket", required=True,
              aliases=("hostname", "server"), host=True, socket=True),
        Field("port", "port of the server (default 5432)"),
        Field("database", "name of the database", required=True, aliases=("dbname", "database_name")),
        Field("username", "user that reads the data", required=True, aliases=("user", "user_name")),
        Field("password", "password of the user", secret=True),
        Field("sslmode", "libpq's sslmode: disable, prefer, require, verify-ca, verify-full"),
        Field("ssl_certificate", "certificate of the certificate authority of the server, in PEM format"),
    ),
    aliases=("postgres", "databases-for-postgresql", "amazon-rds-postgresql"),
    extra="data-postgres", modules=("adbc_driver_postgresql", "pyarrow"), options={"port": 5432},
    tested="PostgreSQL 18",
)
