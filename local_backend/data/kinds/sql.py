"""Databases for which SQLAlchemy has a dialect. The dialect quotes identifiers. Rows come through a cursor of the
server, so no table is ever in memory as a whole."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from local_backend.data.columns import FIRST_ROWS, batches, decimal, seen_type
from local_backend.data.errors import DataError, DataUnavailable
from local_backend.data.kind import Extent, Field, SourceTable, TableFamily
from local_backend.data.locations import FileSelection, check_query, other_case, selection_of

if TYPE_CHECKING:
    import pyarrow
    from sqlalchemy import Connection, Engine
    from sqlalchemy.engine import URL
    from sqlalchemy.types import TypeEngine

#: Texts of temporary errors: few drivers show by class or number of an exception whether a retry may help.
_UNREACHED = re.compile(
    r"refused|could not connect|timed out|time-?out|unreachable|reset by peer|broken pipe|lost connection",
    re.IGNORECASE)
_NOT_LET_IN = re.compile(r"password|authenti|authori[sz]|login failed|access denied|credential|certificate|ORA-01017",
                         re.IGNORECASE)
#: Rows that determine the columns of a query.
_SAMPLE = 1000

HOST = Field("host", "name or address of the server", required=True, aliases=("hostname", "server"), host=True)
DATABASE = Field("database", "name of the database", required=True, aliases=("dbname", "database_name"))
USERNAME = Field("username", "user that reads the data", required=True, aliases=("user", "user_name"))
PASSWORD = Field("password", "password of the user", secret=True)


def port(number: int) -> Field:
    """Return the field for a port with a usual number."""
    return Field("port", f"port of the server (default {number})")


@dataclass(frozen=True)
class Described:
    """A table: the statement that reads it, its columns, and its name."""

    statement: Any
    schema: pyarrow.Schema
    what: FileSelection


class Sql(TableFamily):
    """Common base of all dialects. Each call has a connection of its own.

    Options of a kind: `dialect` (as SQLAlchemy writes it) and `port`. `begin` are statements that make the transaction
    read one state. `test` is a query that any user may run. A query must not have `words` and `signs`. `arguments` go
    to the driver. `database_field` is the value that names the database. With `pinned` the driver gets the address that
    was checked: it looks up names where network.guard does not see it. A driver that needs the name is not pinned.
    """

    def test(self) -> None:
        with self._reading() as connection:
            connection.exec_driver_sql(self.kind.options.get("test", "SELECT 1"))

    def table(self, location: Mapping[str, Any]) -> SourceTable:
        what = selection_of(location)
        with self._reading(what.catalog) as connection:
            if what.query:
                schema, _ = self._sampled(self._run(connection, what, None))
            else:
                schema = self._described(connection, what).schema
        return SourceTable(schema)

    def batches(self, location: Mapping[str, Any], most_rows: int | None = None) -> Iterator[pyarrow.RecordBatch]:
        what = selection_of(location)
        with self._reading(what.catalog) as connection:
            if what.query:
                result = self._run(connection, what, None)
                schema, first = self._sampled(result)
                rows: Iterator[Sequence[Any]] = chain(first, _all(result))
            else:
                found = self._described(connection, what)
                schema, rows = found.schema, _all(self._run(connection, what, found.statement))
            left = [most_rows]

            def some(wish: int) -> list[Sequence[Any]]:
                count = wish if left[0] is None else min(wish, left[0])
                some_rows = [row for _, row in zip(range(count), rows, strict=False)]
                left[0] = None if left[0] is None else left[0] - len(some_rows)
                return some_rows

            yield from batches(some, schema)

    def extent(self, location: Mapping[str, Any], seconds: float) -> Extent:
        import sqlalchemy

        what = selection_of(location)
        with self._reading(what.catalog) as connection:
            if what.query:
                statement: Any = self._query(what)
            else:
                found = self._described(connection, what)
                statement, what = found.statement, found.what
            about = Extent() if what.query else self.estimate(connection, what)
            counting = f"SELECT COUNT(*) FROM ({statement}) wanted" if isinstance(statement, str) else \
                sqlalchemy.select(sqlalchemy.func.count()).select_from(statement.subquery())
            self.hurry(connection, seconds)
            # Some servers permit no query within another, and some cannot count in time.
            with contextlib.suppress(sqlalchemy.exc.DBAPIError):
                return Extent(int(self._run(connection, what, counting).scalar()), size=about.size)
            return about

    def hurry(self, connection: Connection, seconds: float) -> None:
        """Tell the server that no statement may take longer than `seconds`."""

    def estimate(self, connection: Connection, what: FileSelection) -> Extent:
        """Return the server's estimate of the extent of a table."""
        return Extent()

    def url(self, catalog: str) -> URL:
        """Return the URL that SQLAlchemy connects to. A catalog is a database, unless the server has another word for
        that."""
        from sqlalchemy.engine import URL

        options, values = self.kind.options, self.values
        host, number = values["host"], int(values.get("port") or options["port"])
        addresses = self.addresses(host, number)
        return URL.create(
            options["dialect"], values["username"], values.get("password"),
            addresses[0] if options.get("pinned") else host, number,
            catalog or values[options.get("database_field", "database")])

    def engine(self, catalog: str) -> Engine:
        """Return the engine that makes the connections."""
        import sqlalchemy

        return sqlalchemy.create_engine(self.url(catalog), poolclass=sqlalchemy.NullPool,
                                        connect_args=dict(self.kind.options.get("arguments", {})))

    def arrow_type(self, kind: TypeEngine[Any]) -> pyarrow.DataType:
        """Return the Arrow type of a column; text for an unknown type."""
        import pyarrow
        from sqlalchemy import types

        if isinstance(kind, types.Numeric) and not isinstance(kind, types.Float):
            return decimal(kind.precision, kind.scale)
        zone = "UTC" if getattr(kind, "timezone", False) else None
        table: tuple[tuple[Any, pyarrow.DataType], ...] = (
            (types.Boolean, pyarrow.bool_()), (types.Integer, pyarrow.int64()), (types.Float, pyarrow.float64()),
            (types.DateTime, pyarrow.timestamp("us", zone)), (types.Date, pyarrow.date32()),
            (types.Time, pyarrow.string() if zone else pyarrow.time64("us")),
            (types._Binary, pyarrow.binary()),
        )
        return next((found for known, found in table if isinstance(kind, known)), pyarrow.string())

    @contextlib.contextmanager
    def _reading(self, catalog: str = "") -> Iterator[Connection]:
        try:
            connection = self.engine(catalog).connect()
        except DataError:
            raise
        except Exception as problem:  # drivers raise exceptions of their own and of other libraries
            raise self.trouble(problem, connecting=True) from None
        try:
            for statement in self.kind.options.get("begin", ()):
                connection.exec_driver_sql(statement)
            yield connection.execution_options(stream_results=True, max_row_buffer=FIRST_ROWS)
        except DataError:
            raise
        except Exception as problem:
            raise self.trouble(problem) from None
        finally:
            self.leave(connection)

    def leave(self, connection: Connection) -> None:
        """Close the connection without reading its remaining data."""
        import sqlalchemy

        with contextlib.suppress(sqlalchemy.exc.SQLAlchemyError, OSError):
            connection.invalidate()
        with contextlib.suppress(sqlalchemy.exc.SQLAlchemyError, OSError):
            connection.close()

    def trouble(self, problem: Exception, connecting: bool = False) -> DataError:
        """Return the error for a driver's exception. Subclasses know better which exceptions are temporary."""
        import sqlalchemy

        original = getattr(problem, "orig", None) or problem
        text = self.without_secrets(original)
        passes = isinstance(original, OSError) or getattr(problem, "connection_invalidated", False) or (
            connecting and isinstance(problem, sqlalchemy.exc.OperationalError)) or _UNREACHED.search(text)
        return (DataUnavailable if passes and not _NOT_LET_IN.search(text) else DataError)(f"{self.kind.title}: {text}")

    def _run(self, connection: Connection, what: FileSelection, statement: Any) -> Any:
        # A text runs without parameters, so that a percent sign is not a placeholder.
        if isinstance(statement, str):
            return connection.execution_options(no_parameters=True).exec_driver_sql(statement)
        if statement is not None:
            return connection.execute(statement)
        result = self._run(connection, what, self._query(what))
        names = list(result.keys())
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise DataError(f"the query has two columns '{twice[0]}'; rename one with AS")
        return result

    def _query(self, what: FileSelection) -> str:
        """Return the query, checked. Raises DataError."""
        options = self.kind.options
        return check_query(what.query, options.get("words", frozenset()), options.get("signs", frozenset()))

    def told_types(self, description: Sequence[Sequence[Any]]) -> list[pyarrow.DataType | None]:
        """Return the types that the driver's cursor reports for the columns of a query; None where it reports too
        little."""
        return [None] * len(description)

    def _sampled(self, result: Any) -> tuple[pyarrow.Schema, Sequence[Sequence[Any]]]:
        """Return the columns of a query, from the driver's report and the first rows; and these rows."""
        import pyarrow

        told = self.told_types(result.cursor.description)
        first = [tuple(row) for row in result.fetchmany(_SAMPLE)]
        values: list[tuple[Any, ...]] = list(zip(*first, strict=True)) if first else [()] * len(told)
        return pyarrow.schema([(name, known or seen_type(some))
                               for name, known, some in zip(result.keys(), told, values, strict=True)]), first

    def _described(self, connection: Connection, what: FileSelection) -> Described:
        """Return a table. If no table has this spelling, return the only one whose name differs in case alone. Raises
        DataError."""
        found = self._written(connection, what)
        if found is not None:
            return found
        names = self._names(connection, what)
        other = other_case(what.table, names)
        found = self._written(connection, replace(what, table=other)) if other else None
        if found is not None:
            return found
        near = difflib.get_close_matches(what.table, names, 1)
        raise DataError(f"{self.kind.title}: there is no table '{what.title}'"
                        + (f"; did you mean '{near[0]}'?" if near else ""))

    def _written(self, connection: Connection, what: FileSelection) -> Described | None:
        """Return a table. Try its name as written, then in the case that the server gives to unquoted names. None if
        there is no such table."""
        import pyarrow
        import sqlalchemy
        from sqlalchemy.sql.elements import quoted_name

        inspector = sqlalchemy.inspect(connection)
        for quote in (True, None):
            name = quoted_name(what.table, quote)
            schema = quoted_name(what.schema, quote) if what.schema else None
            try:
                found = inspector.get_columns(name, schema)
            except sqlalchemy.exc.NoSuchTableError:
                continue
            if not found:
                continue
            columns: list[Any] = [sqlalchemy.column(quoted_name(column["name"], quote)) for column in found]
            source = sqlalchemy.table(name, *columns, schema=schema)
            fields = [pyarrow.field(str(column["name"]), self.arrow_type(column["type"]), column.get("nullable", True))
                      for column in found]
            return Described(sqlalchemy.select(*columns).select_from(source), pyarrow.schema(fields), what)
        return None

    def _names(self, connection: Connection, what: FileSelection) -> list[str]:
        """Return the tables and views of the requested schema; none if the server does not list them."""
        import sqlalchemy

        inspector = sqlalchemy.inspect(connection)
        with contextlib.suppress(sqlalchemy.exc.SQLAlchemyError):
            return [*inspector.get_table_names(what.schema or None), *inspector.get_view_names(what.schema or None)]
        return []


def _all(result: Any) -> Iterator[Sequence[Any]]:
    while rows := result.fetchmany(FIRST_ROWS):
        yield from rows
