"""Export of tables to Parquet, by the real driver, from a stand-in that speaks the Cassandra protocol."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from injections import NAMES, QUERIES
from tabling import exported, types

from local_backend.data.errors import DataError, DataUnavailable
from local_backend.data.kind import Extent
from local_backend.data.registry import find

pytest.importorskip("cassandra", reason="the driver is not installed (extra cassandra)")
from cassandra import cqltypes
from cassandra_server import PASSWORD, SYSTEM, CassandraServer, serving

pytestmark = pytest.mark.integration

ONE, AT = uuid.UUID(int=7), datetime(2024, 1, 2, 3, 4, 5, 6000)
#: Name, codec, stored value, exported type, exported value.
COLUMNS = (
    ("a", cqltypes.AsciiType, "a", "string", "a"), ("l", cqltypes.LongType, 2**40, "int64", 2**40),
    ("raw", cqltypes.BytesType, b"\0\xff", "binary", b"\0\xff"), ("b", cqltypes.BooleanType, True, "bool", True),
    ("n", cqltypes.DecimalType, Decimal("1.250"), "string", "1.250"), ("d", cqltypes.DoubleType, 2.5, "double", 2.5),
    ("f", cqltypes.FloatType, 1.5, "float", 1.5), ("i", cqltypes.Int32Type, 3, "int32", 3),
    ("at", cqltypes.DateType, AT, "timestamp[us, tz=UTC]", AT.replace(tzinfo=timezone.utc)),
    ("u", cqltypes.UUIDType, ONE, "string", str(ONE)), ("t", cqltypes.UTF8Type, "ä ☃", "string", "ä ☃"),
    ("wide", cqltypes.IntegerType, 2**70, "string", str(2**70)),
    ("address", cqltypes.InetAddressType, "10.0.0.1", "string", "10.0.0.1"),
    ("day", cqltypes.SimpleDateType, date(2024, 1, 2), "date32[day]", date(2024, 1, 2)),
    ("clock", cqltypes.TimeType, timedelta(hours=1).seconds * 10**9, "string", "01:00:00.000000000"),
    ("small", cqltypes.ShortType, 2, "int16", 2), ("tiny", cqltypes.ByteType, 1, "int8", 1),
    ("odd \"';", cqltypes.Int32Type, 9, "int32", 9),
    ("list", cqltypes.ListType.apply_parameters([cqltypes.Int32Type]), [1, 2], "string", "[1, 2]"),
    ("set", cqltypes.SetType.apply_parameters([cqltypes.UTF8Type]), {"b", "a"}, "string", '["a", "b"]'),
    ("map", cqltypes.MapType.apply_parameters([cqltypes.UTF8Type, cqltypes.Int32Type]), {"ä": 1}, "string", '{"ä": 1}'),
)


@pytest.fixture(scope="module")
def cassandra() -> Iterator[CassandraServer]:
    with serving() as server:
        digits = (("id", cqltypes.Int32Type), ("text", cqltypes.UTF8Type))
        everything = [(name, kind) for name, kind, *_ in COLUMNS]
        server.tables = {
            "digits": (digits, [(number, f"digit {number}") for number in range(5500)]), "empty": (digits, []),
            "everything": (everything, [[value for _, _, value, *_ in COLUMNS], [None] * len(COLUMNS)])}
        yield server


@pytest.fixture
def connect(cassandra: CassandraServer) -> Any:
    """A function that opens a connection, optionally with changed values."""
    cassandra.busy = False
    values = {"host": "127.0.0.1", "port": str(cassandra.server_address[1]), "keyspace": "test", "username": "ada",
              "password": PASSWORD}
    return lambda loopback=True, **other: find("Apache Cassandra").open(values | other, loopback)


def test_a_table_and_a_query_are_exported_page_by_page(
    connect: Any, cassandra: CassandraServer, tmp_path: Path
) -> None:
    family = connect()
    family.test()
    for location in ({"table_name": "digits"}, {"schema_name": "test", "table_name": "digits"},
                     {"query": "SELECT * FROM digits"}):
        cassandra.pages.clear()
        table = exported(family, location, tmp_path)
        assert types(table) == {"id": "int32", "text": "string"}
        assert table["id"].to_pylist() == list(range(5500))
        assert cassandra.pages[-6:] == list(range(0, 6000, 1000))
        assert family.table(location).schema.equals(table.schema)


def test_the_case_of_a_table_name_is_ignored_and_rows_are_counted(connect: Any, cassandra: CassandraServer) -> None:
    family = connect()
    assert family.table({"table_name": "DIGITS"}).schema.names == ["id", "text"]
    assert family.extent({"table_name": "Digits"}, 60) == Extent(5500)
    assert family.extent({"query": "SELECT * FROM digits"}, 60) == Extent()
    cassandra.tables |= {"Twin": cassandra.tables["empty"], "twin": cassandra.tables["empty"]}
    with pytest.raises(DataError, match="'Twin', 'twin'"):
        family.table({"table_name": "TWIN"})


def test_cassandra_types_are_converted(connect: Any, tmp_path: Path) -> None:
    table = exported(connect(), {"table_name": "everything"}, tmp_path)
    assert types(table) == {name: kind for name, _, _, kind, _ in COLUMNS}
    first, nothing = table.to_pylist()
    assert first == {name: value for name, *_, value in COLUMNS} and set(nothing.values()) == {None}


def test_an_empty_result_is_one_shard_with_the_schema(connect: Any, tmp_path: Path) -> None:
    table = exported(connect(), {"table_name": "empty"}, tmp_path)
    assert table.num_rows == 0 and types(table) == {"id": "int32", "text": "string"}


@pytest.mark.parametrize("name", NAMES)
def test_names_with_injection_are_quoted(connect: Any, cassandra: CassandraServer, name: str) -> None:
    quoted = '"' + name.replace('"', '""') + '"'
    for location, named in (({"table_name": name}, quoted),
                            ({"table_name": "digits", "schema_name": name}, f'{quoted}."digits"')):
        with pytest.raises(DataError, match="unconfigured table"):
            next(connect().batches(location))
        assert cassandra.statements[-1] == f"SELECT * FROM {named}"


@pytest.mark.parametrize("query", QUERIES)
def test_queries_that_write_are_not_sent(connect: Any, cassandra: CassandraServer, query: str) -> None:
    cassandra.statements.clear()
    with pytest.raises(DataError):
        next(connect().batches({"query": query}))
    assert [one for one in cassandra.statements if not (one.startswith("USE ") or SYSTEM.search(one))] == []


@pytest.mark.parametrize(("values", "kind", "words"), [
    ({"port": "1"}, DataUnavailable, "refused"),
    ({"password": "6 pears"}, DataError, "password are incorrect"),
    ({"keyspace": "nowhere"}, DataError, "nowhere"),
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


def test_a_missing_table_is_reported(connect: Any) -> None:
    with pytest.raises(DataError, match='"digit"') as problem:
        connect().table({"table_name": "digit"})
    assert not isinstance(problem.value, DataUnavailable)


def test_a_server_overloaded_during_an_export_leaves_no_files(
    connect: Any, cassandra: CassandraServer, tmp_path: Path
) -> None:
    cassandra.busy = True
    with pytest.raises(DataUnavailable):
        exported(connect(), {"table_name": "digits"}, tmp_path)
    assert list(tmp_path.iterdir()) == []
