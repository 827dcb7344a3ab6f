"""Export of tables of a real PostgreSQL server to Parquet."""

from __future__ import annotations

import json
import threading
from datetime import date, datetime, time, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from injections import NAMES, QUERIES
from postgres_server import PostgresServer
from support import eventually
from tabling import Tally, exported, row, types

from local_backend.data import export
from local_backend.data.errors import DataError, DataUnavailable
from local_backend.data.export import TableLimits, export_table
from local_backend.data.kind import Extent
from local_backend.data.progress import Cancelled
from local_backend.data.registry import find

pytestmark = pytest.mark.integration

pytest.importorskip("adbc_driver_postgresql", reason="the driver is not installed (extra data-postgres)")



def slow(mark: str) -> str:
    """Return a query that runs very long, with a mark that tells it from other such queries that may still run."""
    return f"SELECT i, pg_sleep(0.01)::text AS {mark}, repeat('x', 1000) AS x FROM generate_series(1, 1000000) AS i"


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> str:
    """A database with a few tables."""
    name = str(postgres.new().database)
    for statement in (
        "CREATE TABLE digits AS SELECT i::bigint AS id, i * 0.5::float8 AS half, 'digit ' || i AS text "
        "FROM generate_series(1, 50000) AS i",
        "CREATE TABLE victim (secret int)", "INSERT INTO victim VALUES (42)",
        "CREATE SCHEMA \"Odd \"\"one\"", "CREATE TABLE \"Odd \"\"one\".\"T;t\" (\"C 'c\" int)",
        "CREATE SEQUENCE counter",
    ):
        postgres.ask(statement, name)
    return name


@pytest.fixture
def connect(postgres: PostgresServer, database: str) -> Any:
    """A function that opens a connection, optionally with changed values."""
    values = {"host": str(postgres.folder), "database": database, "username": "dlicmd", "password": "not-asked-for"}
    return lambda loopback=True, **other: find("postgresql").open(values | other, loopback)


@pytest.fixture
def family(connect: Any) -> Any:
    return connect()


def test_a_table_and_its_schema_are_exported(family: Any, tmp_path: Path) -> None:
    family.test()
    table = exported(family, {"schema_name": "public", "table_name": "digits"}, tmp_path)
    assert table.num_rows == 50000 and types(table) == {"id": "int64", "half": "double", "text": "string"}
    assert set(table["id"].to_pylist()) == set(range(1, 50001))
    described = json.loads((tmp_path / "_schema.json").read_text())
    assert described["rows"] == 50000 and described["columns"][0] == {"name": "id", "type": "int64", "nullable": True}
    assert [shard["file"] for shard in described["shards"]] == ["part-00000.parquet"]
    assert family.table({"table_name": "digits"}).schema.equals(table.schema)


@pytest.mark.parametrize("key", ["database_name", "catalog_name"])
@pytest.mark.parametrize("schema", [{}, {"schema_name": "public"}])
def test_a_location_names_another_database(
    postgres: PostgresServer, connect: Any, tmp_path: Path, key: str, schema: dict[str, str]
) -> None:
    other = str(postgres.new().database)
    postgres.ask("CREATE TABLE digits AS SELECT 7 AS id", other)
    location = {key: other, "table_name": "digits", **schema}
    family = connect(**find("postgresql").database(location))
    family.check(location)
    assert exported(family, location, tmp_path)["id"].to_pylist() == [7]
    with pytest.raises(DataError, match='"nodb"'):
        connect(**find("postgresql").database({key: "nodb"})).table({"table_name": "digits"})


def test_an_export_is_split_into_shards_of_bounded_size(
    family: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "SHARD_BYTES", 50_000)
    monkeypatch.setattr(export, "GROUP_BYTES", 100_000)
    query = {"query": "SELECT i, md5(i::text) AS m FROM generate_series(1, 400000) AS i"}
    assert exported(family, query, tmp_path).num_rows == 400000
    assert len(list(tmp_path.glob("part-*.parquet"))) > 1
    assert exported(family, {"table_name": "victim"}, tmp_path).num_rows == 1, "older shards must be gone"


def test_postgresql_types_are_converted(family: Any, tmp_path: Path) -> None:
    found = row(family, {"query": """
        SELECT true AS b, 1::int2 AS s, 2::int8 AS l, 1.5::float4 AS f, 12.25::numeric(12, 2) AS n,
               1e40::numeric(60, 1) AS wide, 0.1::numeric AS any, 'ä' AS t, '\\x00ff'::bytea AS bytes,
               '2024-01-02 03:04:05.000006+02'::timestamptz AS instant, '2024-01-02 03:04:05'::timestamp AS local,
               '2024-01-02'::date AS d, '12:30'::time AS at, '{"a": [1]}'::jsonb AS j, ARRAY[1, NULL] AS ints,
               ARRAY[1.5]::numeric[] AS decimals, '10.0.0.1'::inet AS address, '1 day'::interval AS length,
               gen_random_uuid() AS u, (1, 'x') AS composed, NULL::int AS nothing, '$1.50'::money AS m"""}, tmp_path)
    assert len(found.pop("u")) == 36
    assert found == {
        "b": True, "s": 1, "l": 2, "f": 1.5, "n": Decimal("12.25"), "wide": Decimal("1e40"), "any": "0.1", "t": "ä",
        "bytes": b"\0\xff", "instant": datetime(2024, 1, 2, 1, 4, 5, 6, timezone.utc),
        "local": datetime(2024, 1, 2, 3, 4, 5), "d": date(2024, 1, 2), "at": time(12, 30), "j": '{"a": [1]}',
        "ints": [1, None], "decimals": "[1.5]", "address": "10.0.0.1/32", "length": "1 day",
        "composed": '{"f1":1,"f2":"x"}', "nothing": None, "m": "$1.50",
    }


@pytest.mark.parametrize(("column", "words"), [
    ("'infinity'::date", "infinite time"), ("'-infinity'::timestamptz", "infinite time"),
    ("'NaN'::numeric(5, 2)", "not a valid decimal128"), ("1 AS x, 2", "two columns 'x'"),
])
def test_values_without_an_equivalent_are_rejected(family: Any, tmp_path: Path, column: str, words: str) -> None:
    with pytest.raises(DataError, match=words) as problem:
        exported(family, {"query": f"SELECT {column} AS x"}, tmp_path)
    assert not isinstance(problem.value, DataUnavailable) and not (tmp_path / "_schema.json").exists()


def test_an_empty_result_is_one_shard_with_the_schema(family: Any, tmp_path: Path) -> None:
    table = exported(family, {"query": "SELECT * FROM digits WHERE id < 0"}, tmp_path)
    assert table.num_rows == 0 and types(table) == {"id": "int64", "half": "double", "text": "string"}


def test_schema_and_table_names_are_quoted(family: Any, tmp_path: Path) -> None:
    table = exported(family, {"schema_name": 'Odd "one', "table_name": "T;t"}, tmp_path)
    assert table.column_names == ["C 'c"]


@pytest.mark.parametrize("name", ["c`ol", '"', 'd"q', "100%", "%s", "[b]", "]", "$1", "qu'ote", "a.b", "?",
                                  "back\\slash"])
def test_names_with_quotes_and_special_characters_are_exported(
    family: Any, postgres: PostgresServer, database: str, name: str, tmp_path: Path
) -> None:
    quoted = '"' + name.replace('"', '""') + '"'
    postgres.ask(f"CREATE TABLE {quoted[:-1]} t\" AS SELECT 1 AS {quoted}, '10.0.0.1'::inet AS \"%z\"", database)
    assert exported(family, {"table_name": name + " t"}, tmp_path).to_pylist() == [{name: 1, "%z": "10.0.0.1/32"}]


def test_the_case_of_a_table_name_is_ignored_if_it_is_unique(
    family: Any, postgres: PostgresServer, database: str, tmp_path: Path
) -> None:
    for location in ({"table_name": "DIGITS"}, {"schema_name": "Public", "table_name": "digits"},
                     {"schema_name": 'ODD "ONE', "table_name": "t;T"}):
        assert exported(family, location, tmp_path).num_rows == (0 if "ODD" in str(location) else 50000)
    for name in ("Twin", "twin"):
        postgres.ask(f'CREATE TABLE "{name}" ("{name}" int)', database)
    assert exported(family, {"table_name": "Twin"}, tmp_path).column_names == ["Twin"]
    for location, names in (({"table_name": "TWIN"}, "'Twin', 'twin'"),
                            ({"schema_name": "PUBLIC", "table_name": "Twin"}, "'public.Twin', 'public.twin'")):
        with pytest.raises(DataError, match=names):
            family.table(location)


def test_rows_are_counted_or_estimated(family: Any, postgres: PostgresServer, database: str) -> None:
    found = family.extent({"table_name": "Digits"}, 60)
    assert (found.rows, found.estimated) == (50000, False) and found.size > 50000
    assert family.extent({"query": "SELECT text FROM digits WHERE '%s' <> ':x' AND id <= 70;"}, 60) == Extent(70)
    postgres.ask("CREATE TABLE parts (x int) PARTITION BY RANGE (x)", database)
    postgres.ask("CREATE TABLE part PARTITION OF parts FOR VALUES FROM (1) TO (1000)", database)
    postgres.ask("INSERT INTO parts VALUES (7)", database)
    assert family.extent({"table_name": "parts"}, 60) == Extent(1, size=8192)
    endless = "SELECT pg_sleep(60)::text AS s FROM generate_series(1, 700)"
    postgres.ask(f"CREATE VIEW endless AS {endless}", database)
    for location in ({"query": endless}, {"table_name": "endless"}):
        assert family.extent(location, 0.05) == Extent(700, estimated=True)


@pytest.mark.parametrize("name", NAMES)
def test_names_with_sql_injection_are_refused(family: Any, name: str) -> None:
    for location in ({"table_name": name}, {"table_name": "digits", "schema_name": name}):
        with pytest.raises(DataError, match="does not exist"):
            next(family.batches(location))


@pytest.mark.parametrize("query", [*QUERIES, "SELECT nextval('counter')", "SELECT lo_create(7)",
                                   "SELECT set_config('transaction_read_only', 'off', false), nextval('counter')"])
def test_queries_that_write_are_refused(family: Any, query: str, postgres: PostgresServer, database: str) -> None:
    with pytest.raises(DataError) as problem:
        next(family.batches({"query": query}))
    assert not isinstance(problem.value, DataUnavailable)
    assert postgres.ask("SELECT secret, nextval('counter') IS NOT NULL FROM victim", database) == [(42, True)]


@pytest.mark.parametrize(("values", "kind", "words"), [
    ({"host": "127.0.0.1", "port": "1"}, DataUnavailable, "Connection refused"),
    ({"host": "no-such-host.invalid"}, DataUnavailable, "cannot look up"),
    ({"database": "nowhere"}, DataError, '"nowhere"'),
    ({"username": "nobody"}, DataError, '"nobody"'),
    ({"host": "169.254.169.254"}, DataError, "does not connect to the address"),
    ({"sslmode": "sometimes"}, DataError, "sslmode"),
])
def test_a_failed_connection_is_reported_with_the_reason(
    connect: Any, values: dict[str, str], kind: type[DataError], words: str
) -> None:
    with pytest.raises(DataError, match=words) as problem:
        connect(**values).test()
    assert type(problem.value) is kind and "not-asked-for" not in str(problem.value)


def test_a_multi_user_server_does_not_connect_to_itself(connect: Any) -> None:
    for host in ({}, {"host": "127.0.0.1"}, {"host": "localhost"}):
        with pytest.raises(DataError, match="does not connect to"):
            connect(loopback=False, **host).test()


def test_a_missing_table_or_column_is_reported(family: Any, tmp_path: Path) -> None:
    for location in ({"table_name": "nothing"}, {"query": "SELECT nothing FROM digits"}):
        with pytest.raises(DataError, match="nothing") as problem:
            exported(family, location, tmp_path)
        assert not isinstance(problem.value, DataUnavailable)


def test_rows_and_time_of_an_export_are_limited(family: Any, tmp_path: Path) -> None:
    assert exported(family, {"table_name": "digits"}, tmp_path, TableLimits(rows=50000)).num_rows == 50000
    with pytest.raises(DataError, match=r"49,999 rows.*DLI_DATA_ROWS"):
        exported(family, {"table_name": "digits"}, tmp_path, TableLimits(rows=49999))
    with pytest.raises(DataError, match="DLI_DATA_SECONDS"):
        exported(family, {"query": slow("limited")}, tmp_path, TableLimits(seconds=0.5))
    assert [file.name for file in tmp_path.iterdir()] == []


@pytest.fixture
def reading(postgres: PostgresServer) -> Any:
    """A function that waits until the server runs a slow query, and then applies `then` to its process."""
    def begun(mark: str, then: str) -> None:
        eventually(lambda: postgres.ask(
            f"SELECT {then} FROM pg_stat_activity WHERE query LIKE 'COPY%{mark}%' AND state = 'active'"),
            "the server reads")

    return begun


def test_a_connection_broken_during_an_export_leaves_no_files(family: Any, reading: Any, tmp_path: Path) -> None:
    breaker = threading.Thread(target=reading, args=("broken", "pg_terminate_backend(pid)"))
    breaker.start()
    with pytest.raises(DataUnavailable):
        export_table(family, {"query": slow("broken")}, tmp_path, Tally())
    breaker.join()
    assert [file.name for file in tmp_path.iterdir()] == []


def test_a_cancelled_export_also_ends_on_the_server(
    family: Any, reading: Any, postgres: PostgresServer, tmp_path: Path
) -> None:
    unwanted = threading.Event()
    canceller = threading.Thread(target=lambda: (reading("unwanted", "pid"), unwanted.set()))
    canceller.start()
    with pytest.raises(Cancelled):
        export_table(family, {"query": slow("unwanted")}, tmp_path, Tally(unwanted.is_set))
    canceller.join()
    eventually(lambda: postgres.ask("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'COPY%unwanted%' "
                                    "AND state = 'active'") == [(0,)], "the server stops reading")
    assert [file.name for file in tmp_path.iterdir()] == []
