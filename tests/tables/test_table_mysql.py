"""Export of tables of a real MariaDB server to Parquet."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from injections import NAMES, QUERIES
from support import eventually
from tabling import Tally, exported, row, types

from local_backend.data.errors import DataError, DataUnavailable
from local_backend.data.export import TableLimits, export_table
from local_backend.data.kind import Extent
from local_backend.data.progress import Cancelled
from local_backend.data.registry import find

pytest.importorskip("pymysql", reason="the driver is not installed (extra mysql)")
from mariadb_server import PASSWORD, MariadbServer, serving
from server_process import NotThere

pytestmark = pytest.mark.integration

SLOW = "SELECT seq, SLEEP(0.001) AS {mark}, REPEAT('x', 2000) AS x FROM seq_1_to_1000000"
ALL_TYPES = """CREATE TABLE everything (
    id BIGINT PRIMARY KEY, u BIGINT UNSIGNED, tiny TINYINT, medium MEDIUMINT UNSIGNED, n DECIMAL(12, 2),
    wide DECIMAL(60, 20), f FLOAT, d DOUBLE, t TEXT, j JSON, e ENUM('a', 'b'), b BLOB, bits BIT(9), local DATETIME(6),
    instant TIMESTAMP NULL, day DATE, length TIME, y YEAR, `C '"c` INT)"""


@pytest.fixture(scope="module")
def mariadb() -> Iterator[MariadbServer]:
    try:
        with serving() as server:
            for statement in (
                "CREATE DATABASE test", "CREATE TABLE test.digits AS SELECT seq AS id, seq * 0.5e0 AS half, "
                "CONCAT('digit ', seq) AS text FROM test.seq_1_to_20000",
                "CREATE TABLE test.victim (secret INT)", "INSERT INTO test.victim VALUES (42)",
                "CREATE TABLE test.`odd``; one` (i INT)",
            ):
                server.ask(statement)
            yield server
    except NotThere as problem:
        pytest.skip(str(problem))


@pytest.fixture
def connect(mariadb: MariadbServer) -> Any:
    """A function that opens a connection, optionally with changed values."""
    values = {"host": "127.0.0.1", "port": str(mariadb.port), "database": "test", "user": "ada", "password": PASSWORD}
    return lambda loopback=True, **other: find("Databases for MySQL").open(values | other, loopback)


@pytest.fixture
def family(connect: Any) -> Any:
    return connect()


def test_a_table_and_a_query_are_exported(family: Any, tmp_path: Path) -> None:
    family.test()
    for location in ({"table_name": "digits"}, {"schema_name": "test", "table_name": "digits"},
                     {"query": "SELECT * FROM digits WHERE '%s' <> ':x'"}):
        table = exported(family, location, tmp_path)
        assert types(table) == {"id": "uint64" if "table_name" in location else "int64", "half": "double",
                                "text": "string"}
        assert set(table["id"].to_pylist()) == set(range(1, 20001))
        assert family.table(location).schema.equals(table.schema)
    assert exported(family, {"table_name": "odd`; one"}, tmp_path).num_rows == 0


@pytest.mark.parametrize("name", ["c`ol", "c``ol", "`", "%s", "100%", "%%", "%(x)s", 'd"q', "[b]", "qu'ote", ":x",
                                  "a.b", "x, `y` INT", "back\\slash", "-- x", "sél"])
def test_names_with_quotes_and_special_characters_are_exported(
    family: Any, mariadb: MariadbServer, name: str, tmp_path: Path
) -> None:
    quoted = "`" + name.replace("`", "``") + "`"
    mariadb.ask(f"CREATE TABLE {quoted[:-1]} t` AS SELECT 1 AS {quoted}, 2 AS z", "test")
    mariadb.ask(f"CREATE OR REPLACE VIEW looks AS SELECT * FROM {quoted[:-1]} t`", "test")
    for wanted in (name + " t", "looks"):
        assert exported(family, {"table_name": wanted}, tmp_path).to_pylist() == [{name: 1, "z": 2}]


def test_the_case_of_a_table_name_is_ignored_if_it_is_unique(
    family: Any, mariadb: MariadbServer, tmp_path: Path
) -> None:
    assert exported(family, {"table_name": "DIGITS", "schema_name": "test"}, tmp_path).num_rows == 20000
    mariadb.ask("CREATE TABLE Twin (a INT)", "test")
    mariadb.ask("CREATE TABLE twin (b INT)", "test")
    assert exported(family, {"table_name": "twin"}, tmp_path).column_names == ["b"]
    with pytest.raises(DataError, match=r"'TWIN'.*'Twin', 'twin'"):
        family.table({"table_name": "TWIN"})


def test_rows_are_counted_or_estimated(family: Any, mariadb: MariadbServer) -> None:
    found = family.extent({"table_name": "Digits"}, 60)
    assert (found.rows, found.estimated) == (20000, False) and found.size > 20000
    query = {"query": "SELECT text FROM digits WHERE '%s' <> ':x' AND id <= 70;"}
    assert family.extent(query, 60) == Extent(70)
    mariadb.ask("ANALYZE TABLE digits", "test")
    with mariadb.asking("test") as other:
        other.execute("LOCK TABLES digits WRITE")
        found = family.extent({"table_name": "digits"}, 0.05)
        assert found.estimated and 10000 < found.rows < 40000 and found.size > 20000
        assert family.extent(query, 0.05) == Extent()


@pytest.mark.parametrize("key", ["database_name", "catalog_name", "schema_name"])
def test_a_location_names_another_database(mariadb: MariadbServer, connect: Any, tmp_path: Path, key: str) -> None:
    mariadb.ask("CREATE DATABASE IF NOT EXISTS other")
    mariadb.ask("CREATE OR REPLACE TABLE other.digits AS SELECT 7 AS id")
    kind = find("mysql")
    for location in ({key: "other", "table_name": "digits"}, {key: "other", "query": "SELECT id FROM digits"}):
        family = connect(**kind.database(location))
        family.check(location)
        assert exported(family, location, tmp_path)["id"].to_pylist() == [7]
    with pytest.raises(DataError, match="'nodb'"):
        connect(**kind.database({key: "nodb"})).table({key: "nodb", "table_name": "digits"})


def test_singlestore_is_read_without_a_transaction(mariadb: MariadbServer, connect: Any, tmp_path: Path) -> None:
    """No SingleStore server is available here; MariaDB speaks its protocol, but not its SQL."""
    family: Any = find("SingleStoreDB").open(connect().values, loopback=True)
    family.test()
    for location in ({"table_name": "digits"}, {"query": "SELECT * FROM digits"}):
        assert set(exported(family, location, tmp_path)["id"].to_pylist()) == set(range(1, 20001))
    assert exported(family, {"query": "SELECT text FROM digits WHERE id < 0"}, tmp_path).num_rows == 0
    with pytest.raises(DataError, match=r"'digit'.*'digits'"):
        family.table({"table_name": "digit"})
    with pytest.raises(DataError, match="Access denied"):
        find("singlestore").open(connect().values | {"password": "6 pears"}, loopback=True).test()


def test_mysql_types_are_converted(family: Any, mariadb: MariadbServer, tmp_path: Path) -> None:
    mariadb.ask(ALL_TYPES, "test")
    mariadb.ask("""INSERT INTO everything VALUES (1, 18446744073709551615, -1, 9, 1.25, 3.5, 1.5, 2.5, 'ä', '{"a": 1}',
                'a', x'00ff', b'101', '2024-01-02 03:04:05.000006', '2024-01-02 03:04:05', '2024-01-02', '-30:00:01',
                2024, 7)""", "test")
    found = row(family, {"table_name": "everything"}, tmp_path)
    # The server uses the time zone of the machine.
    ((seconds,),) = mariadb.ask("SELECT UNIX_TIMESTAMP(instant) FROM everything", "test")
    assert found == {
        "id": 1, "u": 2**64 - 1, "tiny": -1, "medium": 9, "n": Decimal("1.25"), "wide": Decimal("3.5"), "f": 1.5,
        "d": 2.5, "t": "ä", "j": '{"a": 1}', "e": "a", "b": b"\0\xff", "bits": b"\0\5",
        "local": datetime(2024, 1, 2, 3, 4, 5, 6), "instant": datetime.fromtimestamp(int(seconds), timezone.utc),
        "day": date(2024, 1, 2), "length": timedelta(hours=-30, seconds=-1), "y": 2024, "C '\"c": 7,
    }
    assert row(family, {"query": "SELECT * FROM everything"}, tmp_path) == found
    mariadb.ask("INSERT INTO everything (id) VALUES (2)", "test")
    nothing = exported(family, {"table_name": "everything"}, tmp_path).to_pylist()[1]
    assert nothing.pop("id") == 2 and set(nothing.values()) == {None}


def test_a_zero_date_is_rejected(family: Any, mariadb: MariadbServer, tmp_path: Path) -> None:
    mariadb.ask("CREATE TABLE zero AS SELECT CAST('2024-01-02' AS DATE) AS d", "test")
    mariadb.ask("SET STATEMENT sql_mode='' FOR UPDATE zero SET d = '0000-00-00'", "test")
    with pytest.raises(DataError, match=r"column 'd'.*date32"):
        exported(family, {"table_name": "zero"}, tmp_path)


def test_an_empty_result_is_one_shard_with_the_schema(family: Any, tmp_path: Path) -> None:
    table = exported(family, {"query": "SELECT secret * 1.5 AS s FROM victim WHERE secret < 0"}, tmp_path)
    assert table.num_rows == 0 and types(table) == {"s": "decimal128(38, 1)"}


@pytest.mark.parametrize("name", NAMES)
def test_names_with_sql_injection_are_refused(family: Any, name: str) -> None:
    for location in ({"table_name": name}, {"table_name": "digits", "schema_name": name}):
        with pytest.raises(DataError) as problem:
            next(family.batches(location))
        assert type(problem.value) is DataError


@pytest.mark.parametrize("query", [*QUERIES, "SELECT NEXTVAL(counter)", "SELECT LOAD_FILE('/etc/passwd')",
                                   "SELECT 1 # '\n; DROP TABLE victim; -- '"])
def test_queries_that_write_are_refused(family: Any, query: str, mariadb: MariadbServer) -> None:
    mariadb.ask("CREATE SEQUENCE IF NOT EXISTS counter", "test")
    with pytest.raises(DataError) as problem:
        next(family.batches({"query": query}))
    assert type(problem.value) is DataError
    assert mariadb.ask("SELECT secret FROM victim", "test") == [(42,)]


@pytest.mark.parametrize(("values", "kind", "words"), [
    ({"port": "1"}, DataUnavailable, "cannot connect to 127.0.0.1:1"),
    ({"password": "6 pears"}, DataError, "Access denied"),
    ({"database": "nowhere"}, DataError, "'nowhere'"),
    ({"ssl": "true"}, DataError, "SSL is required"),
    ({"ssl": "perhaps"}, DataError, "true or false"),
    ({"ssl_certificate": "none"}, DataError, "PEM"),
])
def test_a_failed_connection_is_reported_with_the_reason(
    connect: Any, values: dict[str, str], kind: type[DataError], words: str
) -> None:
    with pytest.raises(DataError, match=words) as problem:
        connect(**values).test()
    assert type(problem.value) is kind and "pears" not in str(problem.value)


def test_a_multi_user_server_does_not_connect_to_loopback(connect: Any) -> None:
    with pytest.raises(DataError, match="does not connect to the address"):
        connect(loopback=False).test()


def test_a_missing_table_or_column_is_reported(family: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'digit'.*'digits'"):
        exported(family, {"table_name": "digit"}, tmp_path)
    with pytest.raises(DataError, match="'nothing'"):
        exported(family, {"query": "SELECT nothing FROM digits"}, tmp_path)


def test_the_number_of_rows_is_limited(family: Any, tmp_path: Path) -> None:
    assert exported(family, {"table_name": "digits"}, tmp_path, TableLimits(rows=20000)).num_rows == 20000
    with pytest.raises(DataError, match=r"19,999 rows.*DLI_DATA_ROWS"):
        exported(family, {"table_name": "digits"}, tmp_path, TableLimits(rows=19999))


def reading(mariadb: MariadbServer, mark: str) -> int:
    """Wait until the slow query with this mark runs, and return the id of its connection."""
    rows = eventually(lambda: mariadb.ask("SELECT id FROM information_schema.processlist WHERE user = 'ada' "
                                          f"AND info LIKE '%{mark}%'"), "the server reads")
    return int(rows[0][0])


def test_a_connection_broken_during_an_export_leaves_no_files(
    family: Any, mariadb: MariadbServer, tmp_path: Path
) -> None:
    breaker = threading.Thread(target=lambda: mariadb.ask(f"KILL {reading(mariadb, 'broken')}"))
    breaker.start()
    with pytest.raises(DataUnavailable):
        export_table(family, {"query": SLOW.format(mark="broken")}, tmp_path, Tally())
    breaker.join()
    assert [file.name for file in tmp_path.iterdir()] == []


def test_a_cancelled_export_leaves_no_files(family: Any, mariadb: MariadbServer, tmp_path: Path) -> None:
    unwanted = threading.Event()
    canceller = threading.Thread(target=lambda: (reading(mariadb, 'unwanted'), unwanted.set()))
    canceller.start()
    with pytest.raises(Cancelled):
        export_table(family, {"query": SLOW.format(mark="unwanted")}, tmp_path, Tally(unwanted.is_set))
    canceller.join()
    assert [file.name for file in tmp_path.iterdir()] == []
