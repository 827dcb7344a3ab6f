"""Export of tables to Parquet from a real server of the Hive protocol."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from injections import NAMES, QUERIES
from tabling import exported, types

from local_backend.data.errors import DataError, DataUnavailable
from local_backend.data.registry import find

pytest.importorskip("pyhive", reason="the driver is not installed (extra hive)")
from hive_server import PASSWORD, HiveServer, serving
from server_process import NotThere

pytestmark = pytest.mark.integration

EVERYTHING = """CREATE TABLE everything (
    b BOOLEAN, tiny TINYINT, small SMALLINT, i INT, long BIGINT, f FLOAT, d DOUBLE, n DECIMAL(12, 2),
    wide DECIMAL(38, 10), s STRING, raw BINARY, day DATE, at TIMESTAMP, list ARRAY<INT>, map MAP<STRING, INT>,
    parts STRUCT<x: INT>, `odd ``:c %s` INT) USING parquet"""
TYPES = {
    "b": "bool", "tiny": "int8", "small": "int16", "i": "int32", "long": "int64", "f": "float", "d": "double",
    "n": "decimal128(12, 2)", "wide": "decimal128(38, 10)", "s": "string", "raw": "binary", "day": "date32[day]",
    "at": "timestamp[us]", "list": "string", "map": "string", "parts": "string", "odd `:c %s": "int32"}
ROW = {
    "b": True, "tiny": 1, "small": 2, "i": 3, "long": 4, "f": 1.5, "d": 2.5, "n": Decimal("1.25"),
    "wide": Decimal("1.5"), "s": "ä ☃", "raw": b"\0\xff", "day": date(2024, 1, 2),
    "at": datetime(2024, 1, 2, 3, 4, 5, 6), "list": "[1,null]", "map": '{"a":1}', "parts": '{"x":1}', "odd `:c %s": 7}


@pytest.fixture(scope="module")
def hive() -> Iterator[HiveServer]:
    try:
        with serving() as server:
            server.ask(
                EVERYTHING,
                "INSERT INTO everything SELECT true, 1, 2, 3, 4, 1.5, 2.5, 1.25, 1.5, 'ä ☃', X'00ff', "
                "DATE'2024-01-02', TIMESTAMP'2024-01-02 03:04:05.000006', array(1, null), map('a', 1), "
                "named_struct('x', 1), 7",
                "CREATE TABLE digits USING parquet AS SELECT id, concat('digit ', id) AS text FROM range(20000)",
                "CREATE DATABASE other", "CREATE TABLE other.`select` (x INT) PARTITIONED BY (day DATE)",
                "CREATE TABLE victim USING parquet AS SELECT 42 AS secret")
            yield server
    except NotThere as problem:
        pytest.skip(str(problem))


@pytest.fixture
def connect(hive: HiveServer) -> Any:
    """A function that opens a connection, optionally with changed values."""
    values = {"host": "127.0.0.1", "port": str(hive.port), "database": "default", "username": "ada",
              "password": PASSWORD}
    return lambda **other: find("Apache Hive").open(values | other, loopback=True)


def test_a_table_and_a_query_are_exported(connect: Any, tmp_path: Path) -> None:
    family = connect()
    family.test()
    for location in ({"table_name": "digits"}, {"schema_name": "default", "table_name": "digits"},
                     {"query": "SELECT * FROM digits WHERE '%s' <> ':x'"}):
        table = exported(family, location, tmp_path)
        assert types(table) == {"id": "int64", "text": "string"}
        assert sorted(table["id"].to_pylist()) == list(range(20000))
        assert family.table(location).schema.equals(table.schema)


def test_hive_types_are_converted(connect: Any, hive: HiveServer, tmp_path: Path) -> None:
    table = exported(connect(), {"table_name": "everything"}, tmp_path)
    assert types(table) == TYPES and table.to_pylist() == [ROW]
    hive.ask("INSERT INTO everything (i) VALUES (9)")
    rows = exported(connect(), {"query": "SELECT * FROM everything ORDER BY i"}, tmp_path).to_pylist()
    assert rows == [ROW, dict.fromkeys(ROW) | {"i": 9}]


def test_an_empty_result_is_one_shard_with_the_schema(connect: Any, tmp_path: Path) -> None:
    table = exported(connect(), {"schema_name": "other", "table_name": "select"}, tmp_path)
    assert table.num_rows == 0 and types(table) == {"x": "int32", "day": "date32[day]"}
    table = exported(connect(database="other"), {"query": "SELECT day FROM `select`"}, tmp_path)
    assert table.num_rows == 0 and types(table) == {"day": "date32[day]"}


@pytest.mark.parametrize("name", NAMES)
def test_names_with_sql_injection_are_refused(connect: Any, name: str) -> None:
    for location in ({"table_name": name}, {"table_name": "digits", "schema_name": name}):
        with pytest.raises(DataError) as problem:
            next(connect().batches(location))
        assert type(problem.value) is DataError


@pytest.mark.parametrize("query", QUERIES)
def test_queries_that_write_are_refused(connect: Any, query: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as problem:
        next(connect().batches({"query": query}))
    assert type(problem.value) is DataError
    assert exported(connect(), {"table_name": "victim"}, tmp_path).to_pylist() == [{"secret": 42}]


@pytest.mark.parametrize(("values", "kind", "words"), [
    ({"port": "1"}, DataUnavailable, "Could not connect"),
    ({"password": "5 pears"}, DataError, "validating the login"),
    ({"database": "nowhere"}, DataError, "nowhere"),
])
def test_a_failed_connection_is_reported_with_the_reason(
    connect: Any, values: dict[str, str], kind: type[DataError], words: str
) -> None:
    with pytest.raises(DataError, match=words) as problem:
        connect(**values).test()
    assert type(problem.value) is kind and "pears" not in str(problem.value)


def test_a_missing_table_or_column_is_reported(connect: Any) -> None:
    for location, words in (({"table_name": "digit"}, "there is no table 'digit'"),
                            ({"table_name": "digits", "schema_name": "no"}, "there is no table 'no.digits'"),
                            ({"query": "SELECT nothing FROM digits"}, "`nothing`")):
        with pytest.raises(DataError, match=words) as problem:
            connect().table(location)
        assert not isinstance(problem.value, DataUnavailable) and "TStatus" not in str(problem.value)
