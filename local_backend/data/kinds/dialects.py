"""Databases that differ from others only in their dialect: a driver, a port, words that no query may have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from local_backend.data.errors import DataError
from local_backend.data.kind import Field, Kind
from local_backend.data.kinds.sql import DATABASE, HOST, PASSWORD, USERNAME, Sql, port

if TYPE_CHECKING:
    import pyarrow
    from sqlalchemy import Engine
    from sqlalchemy.engine import URL
    from sqlalchemy.types import TypeEngine

#: Statements that Transact-SQL accepts in the middle of a line, without a semicolon before them.
_TRANSACT = frozenset({
    "shutdown", "waitfor", "backup", "restore", "dbcc", "kill", "use", "set", "declare", "begin", "if", "while",
    "print", "deny", "openrowset", "opendatasource", "openquery", "bulk", "reconfigure", "writetext", "updatetext",
    "commit", "rollback", "save", "goto", "return", "raiserror", "throw", "go", "disable", "enable",
})


class Snowflake(Sql):
    """An account instead of a host: the address is derived from the account."""

    def url(self, catalog: str) -> URL:
        from sqlalchemy.engine import URL

        values = self.values
        account = values["account"].removesuffix(".snowflakecomputing.com")
        if not all(character.isalnum() or character in "-_." for character in account):
            raise DataError(f"{self.kind.title}: 'account' is not a valid account name")
        _, host, number = self._server(account)
        self.addresses(host, number)
        schema = f"/{values['schema']}" if values.get("schema") else ""
        return URL.create(
            "snowflake", values["username"], values["password"], account,
            database=(catalog or values.get("database", "")) + schema,
            query={key: values[key] for key in ("warehouse", "role") if values.get(key)})

    def engine(self, catalog: str) -> Engine:
        import sqlalchemy

        # These come in addition to the account, from which the dialect would derive an address of its own.
        arguments = dict(zip(("protocol", "host", "port"), self._server(""), strict=True))
        return sqlalchemy.create_engine(self.url(catalog), poolclass=sqlalchemy.NullPool,
                                        connect_args=arguments if self.values.get("url") else {})

    def arrow_type(self, kind: TypeEngine[Any]) -> pyarrow.DataType:
        import pyarrow

        # The dialect has three types of its own that do not derive from types of SQLAlchemy.
        name = type(kind).__name__
        if name.startswith("TIMESTAMP_"):
            return pyarrow.timestamp("us", None if name == "TIMESTAMP_NTZ" else "UTC")
        return super().arrow_type(kind)

    def _server(self, account: str) -> tuple[str, str, int]:
        """Return protocol, host and port."""
        address = self.values.get("url") or f"https://{account}.snowflakecomputing.com"
        parts = urlsplit(address if "://" in address else f"https://{address}")
        if parts.scheme == "http" and not self.loopback:
            raise DataError(f"{self.kind.title}: 'url' must be https, because http sends the password unencrypted")
        return parts.scheme, str(parts.hostname), parts.port or (80 if parts.scheme == "http" else 443)


class Oracle(Sql):
    """A service instead of a database."""

    def url(self, catalog: str) -> URL:
        from sqlalchemy.engine import URL

        found = super().url(catalog)
        return URL.create(found.drivername, found.username, self.values.get("password"), found.host, found.port,
                          query={"service_name": str(found.database)})


_SERVER = (HOST, DATABASE, USERNAME, PASSWORD)

SQLSERVER = Kind(
    "sqlserver", "Microsoft SQL Server", Sql, (*_SERVER, port(1433)), aliases=("mssql", "sql-server"),
    extra="sqlserver", modules=("pymssql", "pyarrow"),
    options={"dialect": "mssql+pymssql", "port": 1433, "words": _TRANSACT, "pinned": True,
             "arguments": {"login_timeout": 10}},
)
ORACLE = Kind(
    "oracle", "Oracle Database", Oracle,
    (HOST, port(1521), Field("service_name", "name of the service", required=True, aliases=("database", "sid")),
     USERNAME, PASSWORD),
    aliases=("oracle-rds", "amazon-rds-oracle", "amazon-rds-for-oracle", "oracle-amazon"),
    extra="oracle", modules=("oracledb", "pyarrow"),
    options={"dialect": "oracle+oracledb", "port": 1521, "database_field": "service_name",
             "test": "SELECT 1 FROM dual", "begin": ("SET TRANSACTION READ ONLY",)},
)
DB2ZOS = Kind(
    "db2zos", "Db2 for z/OS", Sql, (*_SERVER, port(446)), aliases=("db2-for-z/os", "db2-z/os", "db2-zos"),
    extra="db2", modules=("ibm_db_sa", "pyarrow"),
    options={"dialect": "ibm_db_sa", "port": 446, "test": "SELECT 1 FROM sysibm.sysdummy1", "pinned": True},
)
DB2WAREHOUSE = Kind(
    "db2warehouse", "Db2 Warehouse", Sql, (*_SERVER, port(50000)),
    aliases=("db2", "dashdb", "db2-warehouse-on-cloud"), extra="db2", modules=("ibm_db_sa", "pyarrow"),
    options={"dialect": "ibm_db_sa", "port": 50000, "test": "SELECT 1 FROM sysibm.sysdummy1", "pinned": True},
)
NETEZZA = Kind(
    "netezza", "Netezza Performance Server", Sql, (*_SERVER, port(5480)),
    aliases=("puredata-for-analytics", "netezza-optimized"), extra="netezza",
    modules=("nzalchemy", "nzpy", "pyarrow"), options={"dialect": "netezza+nzpy", "port": 5480},
)
TERADATA = Kind(
    "teradata", "Teradata", Sql, _SERVER, extra="teradata", modules=("teradatasqlalchemy", "pyarrow"),
    options={"dialect": "teradatasql", "port": 1025, "pinned": True},
)
SNOWFLAKE = Kind(
    "snowflake", "Snowflake", Snowflake,
    (Field("account", "name of the account", required=True, aliases=("account_name", "host"), host=True), USERNAME,
     Field("password", "password of the user, or a programmatic access token", required=True, secret=True),
     Field("database", "name of the database", required=True), Field("schema", "default schema of tables"),
     Field("warehouse", "warehouse that runs the queries"), Field("role", "role of the session"),
     Field("url", "address of the server (default https://ACCOUNT.snowflakecomputing.com)",
           schemes=("https", "http"), bare=True)),
    extra="snowflake", modules=("snowflake.sqlalchemy", "pyarrow"), options={"dialect": "snowflake"},
    tested="fakesnow 0.12 (a server with its protocol; only drivers before version 5), by hand",
)
