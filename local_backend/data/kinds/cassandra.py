"""Apache Cassandra: a table, or the result of a CQL query. Rows come page by page, in the order of their tokens."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dlicmd.contract.data_sources import DATABASE_NAME, KEYSPACE, QUERY, SCHEMA_NAME, TABLE_NAME
from local_backend.data.columns import batches
from local_backend.data.errors import DataError, DataUnavailable
from local_backend.data.kind import Extent, Field, Kind, SourceTable, TableFamily
from local_backend.data.kinds.sql import HOST, PASSWORD, USERNAME, port
from local_backend.data.locations import FileSelection, check_query, other_case, selection_of

if TYPE_CHECKING:
    import pyarrow

_PATIENCE = 10
_PAGE = 1000
#: CQL types as the driver names them → Arrow types. All others except timestamp become text.
_TYPES = {
    "boolean": "bool", "tinyint": "int8", "smallint": "int16", "int": "int32", "bigint": "int64", "counter": "int64",
    "float": "float32", "double": "float64", "blob": "binary", "date": "date32", "ascii": "string", "text": "string",
}


class Cassandra(TableFamily):
    """Cassandra has no consistent state of a whole table: if a row changes meanwhile, either version is read. Other
    servers call a keyspace a database or a schema."""

    keys = (TABLE_NAME, SCHEMA_NAME, KEYSPACE, DATABASE_NAME, QUERY)
    databases = (SCHEMA_NAME, KEYSPACE, DATABASE_NAME)

    def test(self) -> None:
        with self._session() as session:
            session.execute("SELECT release_version FROM system.local")

    def table(self, location: Mapping[str, Any]) -> SourceTable:
        with self._session() as session:
            return SourceTable(_schema(session.execute(self._statement(session, location, 1))))

    def batches(self, location: Mapping[str, Any], most_rows: int | None = None) -> Iterator[pyarrow.RecordBatch]:
        with self._session() as session:
            result = session.execute(self._statement(session, location, _PAGE))
            schema = _schema(result)
            # A second iterator would begin anew with the current page of the driver.
            rows = (row for row in result)
            left = [most_rows]

            def some(wish: int) -> list[tuple[Any, ...]]:
                count = wish if left[0] is None else min(wish, left[0])
                found = [tuple(map(_plain, row)) for _, row in zip(range(count), rows, strict=False)]
                left[0] = None if left[0] is None else left[0] - len(found)
                return found

            yield from batches(some, schema)

    def extent(self, location: Mapping[str, Any], seconds: float) -> Extent:
        from cassandra import DriverException, RequestExecutionException

        # CQL has no query within another, so the rows of a query cannot be counted.
        what = selection_of(location)
        if what.query:
            return Extent()
        with self._session() as session, contextlib.suppress(DriverException, RequestExecutionException):
            found = session.execute(f"SELECT COUNT(*) FROM {self._name(session, what)}", timeout=seconds)
            return Extent(found.one()[0])
        return Extent()

    def _statement(self, session: Any, location: Mapping[str, Any], page: int) -> Any:
        from cassandra.query import SimpleStatement

        what = selection_of(location)
        text = check_query(what.query) if what.query else f"SELECT * FROM {self._name(session, what)}"
        return SimpleStatement(text, fetch_size=page)

    def _name(self, session: Any, what: FileSelection) -> str:
        """Return the name after FROM. If no table has this spelling, use the only one that differs in case alone.
        Raises DataError."""
        from cassandra import InvalidRequest, Unauthorized

        names: list[str] = []
        # Old servers keep the list of tables elsewhere, and not every user may read it.
        with contextlib.suppress(InvalidRequest, Unauthorized):
            for kind in ("table", "view"):
                asked = f"SELECT {kind}_name FROM system_schema.{kind}s WHERE keyspace_name = %s"
                names += [name for name, in session.execute(asked, [what.schema or self.values["database"]])]
        table = what.table if what.table in names else other_case(what.table, names) or what.table
        return ".".join(_quoted(name) for name in (what.schema, table) if name)

    @contextlib.contextmanager
    def _session(self) -> Iterator[Any]:
        from cassandra import DriverException, RequestExecutionException
        from cassandra.auth import PlainTextAuthProvider
        from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable
        from cassandra.policies import WhiteListRoundRobinPolicy
        from cassandra.query import tuple_factory

        values, host = self.values, self.values["host"]
        number = int(values.get("port") or self.kind.options["port"])
        addresses = self.addresses(host, number)
        # The cluster reports more servers; connect only to servers whose addresses were checked.
        profile = ExecutionProfile(load_balancing_policy=WhiteListRoundRobinPolicy(addresses),
                                   row_factory=tuple_factory, request_timeout=60)
        authority, wish = values.get("ssl_certificate"), self.tls_wish()
        tls = ssl.create_default_context(cadata=authority or None) if authority or wish else None
        cluster = Cluster(
            addresses, number, connect_timeout=_PATIENCE, execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            ssl_context=tls, ssl_options={"server_hostname": host} if tls else None,
            auth_provider=PlainTextAuthProvider(values["username"], values.get("password", ""))
            if values.get("username") else None)
        try:
            session = cluster.connect()
            # Select the keyspace by a query: then the server's own message says what is wrong with it.
            session.execute(f"USE {_quoted(values['database'])}")
            yield session
        except (DriverException, RequestExecutionException, NoHostAvailable, OSError) as problem:
            raise self._trouble(problem) from None
        finally:
            cluster.shutdown()

    def _trouble(self, problem: Exception) -> DataError:
        from cassandra import AuthenticationFailed, Timeout, Unavailable
        from cassandra.cluster import NoHostAvailable

        # `errors` maps server addresses to errors, or is only a list of the remaining addresses.
        errors = problem.errors if isinstance(problem, NoHostAvailable) else []
        inner = [*errors.values()] if isinstance(errors, dict) else []
        refused = any(isinstance(one, AuthenticationFailed) for one in [problem, *inner])
        passes = isinstance(problem, NoHostAvailable | OSError | Timeout | Unavailable)
        return (DataUnavailable if passes and not refused else DataError)(
            f"{self.kind.title}: {self.without_secrets(inner[0] if inner else problem)}")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _schema(result: Any) -> pyarrow.Schema:
    import pyarrow

    known = {"timestamp": pyarrow.timestamp("us", "UTC"), "uuid": pyarrow.string(), "varint": pyarrow.string()}
    fields = []
    for name, kind in zip(result.column_names, result.column_types, strict=True):
        cql = kind.typename
        found = known.get(cql) or pyarrow.type_for_alias(_TYPES.get(cql, "string"))
        fields.append((name, found))
    return pyarrow.schema(fields)


def _plain(value: Any) -> Any:
    """Return a value without the driver's own types for dates and containers."""
    if type(value).__name__ == "Date":
        return value.date()
    if type(value).__name__ in ("OrderedMapSerializedKey", "OrderedMap"):
        return {str(key): _plain(part) for key, part in value.items()}
    if type(value).__name__ == "SortedSet":
        return [_plain(part) for part in value]
    return value


CASSANDRA = Kind(
    "cassandra", "Apache Cassandra", Cassandra,
    fields=(HOST, port(9042), Field("database", "name of the keyspace", required=True, aliases=("keyspace",)),
            USERNAME, PASSWORD, Field("ssl", "true: use TLS; the certificate must match the host"),
            Field("ssl_certificate", "certificate of the certificate authority of the server, in PEM format")),
    aliases=("apache-cassandra", "datastax"), extra="cassandra", modules=("cassandra", "pyarrow"),
    options={"port": 9042}, tested="no real server: a stand-in with the same protocol",
)
