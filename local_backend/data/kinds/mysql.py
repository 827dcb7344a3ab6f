"""MySQL and servers with its protocol: MariaDB, IBM Cloud Databases, Amazon RDS, SingleStore."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dlicmd.contract.data_sources import CATALOG_NAME, DATABASE_NAME, SCHEMA_NAME
from local_backend import network
from local_backend.data.columns import as_text, decimal
from local_backend.data.errors import DataError, DataUnavailable
from local_backend.data.kind import Extent, Field, Kind
from local_backend.data.kinds.sql import DATABASE, HOST, PASSWORD, USERNAME, Described, Sql, port
from local_backend.data.locations import FileSelection

if TYPE_CHECKING:
    import pyarrow
    from sqlalchemy import Connection, Engine

_CONNECT_SECONDS = 10
#: Numbers of temporary errors: no free connection, shutdown, aborted or lost connections, killed statements, lock
#: waits.
_PASSING = frozenset({1040, 1053, 1152, 1158, 1159, 1160, 1161, 1184, 1203, 1205, 1213, 1317, 1927, 2003, 2006, 2013,
                      2055})
#: First arguments of the driver's errors for a missing table or database.
_NO_TABLE = ((1146,), (1049,), (1102,), (1103,))
_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 32, "int": 32, "bigint": 64, "year": 16}
_BYTES = frozenset({"bit", "geometry", "point", "linestring", "polygon", "multipoint", "multilinestring",
                    "multipolygon", "geometrycollection", "vector"})


class Mysql(Sql):
    """This class makes the connection, to an address that was checked; the certificate must match the host name. A
    schema is a database."""

    databases = (DATABASE_NAME, CATALOG_NAME, SCHEMA_NAME)

    def __init__(self, kind: Kind, values: Mapping[str, str]) -> None:
        super().__init__(kind, values)
        self._socket: socket.socket | None = None
        self._driver: Any = None

    def engine(self, catalog: str) -> Engine:
        import sqlalchemy

        return sqlalchemy.create_engine(f"{self.kind.options['dialect']}://", poolclass=sqlalchemy.NullPool,
                                        creator=lambda: self._connect(catalog))

    def leave(self, connection: Connection) -> None:
        self.cancel()
        # Otherwise the driver would read all remaining data of the server, or try to.
        unread = getattr(self._driver, "_result", None)
        if unread is not None:
            unread.unbuffered_active = False
        super().leave(connection)

    def trouble(self, problem: Exception, connecting: bool = False) -> DataError:
        original = getattr(problem, "orig", None) or problem
        number = original.args[0] if original.args else None
        # The driver reports 0 for a connection that it has closed.
        passes = isinstance(original, OSError) or number in _PASSING or number == 0
        return (DataUnavailable if passes else DataError)(f"{self.kind.title}: {self.without_secrets(original)}")

    def cancel(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def hurry(self, connection: Connection, seconds: float) -> None:
        import sqlalchemy

        # The first is MariaDB's, in seconds. The second is MySQL's, in milliseconds.
        for limit in (f"max_statement_time={seconds:g}", f"max_execution_time={seconds * 1000:.0f}"):
            with contextlib.suppress(sqlalchemy.exc.DBAPIError):
                connection.exec_driver_sql(f"SET SESSION {limit}")

    def estimate(self, connection: Connection, what: FileSelection) -> Extent:
        rows = connection.exec_driver_sql(
            "SELECT table_rows, data_length + index_length FROM information_schema.tables "
            "WHERE table_schema = COALESCE(%s, DATABASE()) AND table_name = %s", (what.schema or None, what.table))
        found = rows.fetchone() or (None, None)
        return Extent(found[0], True, None if found[1] is None else int(found[1]))

    def told_types(self, description: Sequence[Sequence[Any]]) -> list[pyarrow.DataType | None]:
        import pyarrow
        from pymysql.constants import FIELD_TYPE

        # The description does not say whether an integer is signed: the first rows decide its type.
        times = {FIELD_TYPE.DATE: pyarrow.date32(), FIELD_TYPE.DATETIME: pyarrow.timestamp("us"),
                 FIELD_TYPE.TIMESTAMP: pyarrow.timestamp("us", "UTC"), FIELD_TYPE.TIME: pyarrow.duration("us"),
                 FIELD_TYPE.FLOAT: pyarrow.float64(), FIELD_TYPE.DOUBLE: pyarrow.float64()}
        # The length of a decimal includes a sign and a point.
        return [decimal(38 if column[4] <= 40 else 76, column[5]) if column[1] == FIELD_TYPE.NEWDECIMAL
                else times.get(column[1]) for column in description]

    def _written(self, connection: Connection, what: FileSelection) -> Described | None:
        # The dialect's own inspection returns names with the escapes of their quoted form, some of them escaped twice.
        import pyarrow
        import sqlalchemy

        name = ".".join(_quoted(part) for part in (what.schema, what.table) if part)
        try:
            columns = self._run(connection, what, f"SHOW COLUMNS FROM {name}").fetchall()
        except sqlalchemy.exc.DBAPIError as problem:
            if problem.orig is not None and problem.orig.args[:1] in _NO_TABLE:
                return None
            raise
        fields = [pyarrow.field(column, _arrow_type(as_text(kind)), null == "YES")
                  for column, kind, null, *_ in columns]
        quoted = ", ".join(_quoted(field.name) for field in fields)
        return Described(f"SELECT {quoted} FROM {name}", pyarrow.schema(fields), what)

    def _names(self, connection: Connection, what: FileSelection) -> list[str]:
        import sqlalchemy

        place = f" FROM {_quoted(what.schema)}" if what.schema else ""
        with contextlib.suppress(sqlalchemy.exc.DBAPIError):
            return [name for name, *_ in self._run(connection, what, f"SHOW TABLES{place}").fetchall()]
        return []

    def _connect(self, catalog: str) -> Any:
        import pymysql

        values, host = self.values, self.values["host"]
        number = int(values.get("port") or self.kind.options["port"])
        self.addresses(host, number)
        connection = pymysql.connect(
            host=host, port=number, user=values["username"], password=values.get("password", ""),
            database=catalog or values["database"], charset="utf8mb4", defer_connect=True, autocommit=False,
            local_infile=False, ssl=self._tls(),
            # The server sends a TIMESTAMP in the time zone of the session.
            init_command="SET SESSION time_zone='+00:00'",
        )
        try:
            self._socket = network.connect(host, number, _CONNECT_SECONDS, self.loopback)
        except OSError as problem:
            raise DataUnavailable(f"{self.kind.title}: cannot connect to {host}:{number}: {problem}") from None
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._socket.settimeout(None)
        connection.connect(self._socket)
        self._driver = connection
        return connection

    def _tls(self) -> ssl.SSLContext | None:
        authority, wish = self.values.get("ssl_certificate"), self.tls_wish()
        if wish is False or not (authority or wish):
            return None
        try:
            return ssl.create_default_context(cadata=authority or None)
        except ssl.SSLError as problem:
            raise DataError(f"{self.kind.title}: 'ssl_certificate' is not in PEM format: {problem}") from None


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _arrow_type(kind: str) -> pyarrow.DataType:
    """Return the Arrow type for a type as the server writes it: `int(10) unsigned`, `decimal(12,2)`."""
    import pyarrow

    kind = kind.lower()
    name = re.split(r"\W", kind, maxsplit=1)[0]
    if bits := _BITS.get(name):
        return getattr(pyarrow, f"{'u' if 'unsigned' in kind else ''}int{bits}")()
    if digits := re.match(r"decimal\((\d+),(\d+)\)", kind):
        return decimal(int(digits[1]), int(digits[2]))
    if name in _BYTES or name.endswith(("blob", "binary")):
        return pyarrow.binary()
    # A TIME may be negative, and longer than a day.
    return {
        "float": pyarrow.float64(), "double": pyarrow.float64(), "date": pyarrow.date32(),
        "time": pyarrow.duration("us"), "datetime": pyarrow.timestamp("us"),
        "timestamp": pyarrow.timestamp("us", "UTC"),
    }.get(name, pyarrow.string())


_FIELDS = (
    HOST, port(3306), DATABASE, USERNAME, PASSWORD,
    Field("ssl", "true: use TLS; the certificate must match the host"),
    Field("ssl_certificate", "certificate of the certificate authority of the server, in PEM format"),
)
_MYSQL = {
    "dialect": "mysql+pymysql", "port": 3306, "signs": frozenset("#"),
    "begin": ("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
              "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"),
}
#: SingleStore supports neither of the two `begin` statements.
_SINGLESTORE = _MYSQL | {"begin": ()}

MYSQL = Kind(
    "mysql", "MySQL", Mysql, _FIELDS,
    aliases=("mariadb", "databases-for-mysql", "ibm-cloud-databases-for-mysql", "amazon-rds-mysql",
             "amazon-rds-for-mysql", "mysql-amazon", "compose-mysql"),
    extra="mysql", modules=("pymysql", "pyarrow"), options=_MYSQL, tested="MariaDB 10.11",
)
SINGLESTORE = Kind(
    "singlestore", "SingleStoreDB", Mysql, _FIELDS, aliases=("singlestoredb", "memsql"),
    extra="mysql", modules=("pymysql", "pyarrow"), options=_SINGLESTORE,
    tested="no real server: MariaDB 10.11, which has the same protocol",
)
