"""Apache Hive and servers with its protocol (HiveServer2), such as Spark. Types come from the server: the dialect loses
the digits of decimals, and puts names unquoted into its DESCRIBE."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dlicmd.contract.data_sources import CATALOG_NAME, DATABASE_NAME, SCHEMA_NAME
from local_backend.data.columns import decimal
from local_backend.data.errors import DataError
from local_backend.data.kind import Kind
from local_backend.data.kinds.sql import DATABASE, HOST, PASSWORD, USERNAME, Described, Sql, port
from local_backend.data.locations import FileSelection

if TYPE_CHECKING:
    import pyarrow
    from sqlalchemy import Connection, Engine

#: SourceNames of types in DESCRIBE and, in capital letters with `_TYPE`, in the protocol; all others become text.
_TYPES = {
    "boolean": "bool", "tinyint": "int8", "smallint": "int16", "int": "int32", "bigint": "int64", "float": "float32",
    "double": "float64", "binary": "binary", "date": "date32", "timestamp": "timestamp[us]",
}
_NO_TABLE = re.compile(r"table not found|TABLE_OR_VIEW_NOT_FOUND|SCHEMA_NOT_FOUND|does not exist", re.IGNORECASE)


class Hive(Sql):
    """With a password, the server checks it in a directory (LDAP). A schema is a database."""

    databases = (DATABASE_NAME, CATALOG_NAME, SCHEMA_NAME)

    def engine(self, catalog: str) -> Engine:
        import sqlalchemy

        arguments = {"auth": "LDAP" if self.values.get("password") else "NONE"}
        return sqlalchemy.create_engine(self.url(catalog), poolclass=sqlalchemy.NullPool, connect_args=arguments)

    def told_types(self, description: Sequence[Sequence[Any]]) -> list[pyarrow.DataType | None]:
        # The protocol does not report the digits of a decimal.
        told = [str(column[1]).removesuffix("_TYPE").lower() for column in description]
        return [None if kind == "decimal" else _arrow_type(kind) for kind in told]

    def trouble(self, problem: Exception, connecting: bool = False) -> DataError:
        original = getattr(problem, "orig", None) or problem
        answer = original.args[0] if original.args else None
        if text := getattr(getattr(answer, "status", None), "errorMessage", None):
            # Keep the first line of the message; the other lines show the place in the server's code.
            problem = RuntimeError(text.strip().partition("\n")[0])
        return super().trouble(problem, connecting)

    def _described(self, connection: Connection, what: FileSelection) -> Described:
        import pyarrow
        import sqlalchemy

        names = [name for name in (what.schema, what.table) if name]
        name = ".".join(_quoted(part) for part in names)
        try:
            rows = self._run(connection, what, f"DESCRIBE {name}").fetchall()
        except sqlalchemy.exc.DBAPIError as problem:
            if _NO_TABLE.search(str(problem.orig)):
                raise DataError(f"{self.kind.title}: there is no table '{what.title}'") from None
            raise
        columns = {}
        for column, kind, *_ in rows:
            # After an empty line or a comment, DESCRIBE lists which columns are partitions.
            if not column or column.startswith("#"):
                break
            columns[column.strip()] = _arrow_type(kind.strip())
        quoted = ", ".join(_quoted(column) for column in columns)
        return Described(f"SELECT {quoted} FROM {name}", pyarrow.schema(columns.items()), what)


def _arrow_type(kind: str) -> pyarrow.DataType:
    import pyarrow

    if digits := re.fullmatch(r"decimal\((\d+),\s*(\d+)\)", kind):
        return decimal(int(digits[1]), int(digits[2]))
    return pyarrow.type_for_alias(_TYPES.get(kind, "string"))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


HIVE = Kind(
    "hive", "Apache Hive", Hive,
    (HOST, port(10000), DATABASE, USERNAME, PASSWORD), aliases=("apache-hive",), extra="hive",
    tested="Spark 3.5's Thrift server (HiveServer2's protocol), by hand",
    modules=("pyhive", "thrift_sasl", "pyarrow"), options={"dialect": "hive", "port": 10000},
)
