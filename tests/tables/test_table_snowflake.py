"""Export of tables to Parquet from fakesnow, a server of the Snowflake protocol.

fakesnow works only with drivers before version 5, and these only with SQLAlchemy 2.0, so it needs its own
environment (docs/dependencies.md). fakesnow accepts any user.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from server_process import NotThere, free_port, listens, running
from tabling import exported, types

from local_backend.data.errors import DataError, DataUnavailable
from local_backend.data.registry import find

pytestmark = pytest.mark.integration

EVERYTHING = """CREATE TABLE everything (
    id INT, n NUMBER(12, 2), f FLOAT, s VARCHAR, b BOOLEAN, day DATE, moment TIMESTAMP_NTZ,
    zoned TIMESTAMP_TZ, raw BINARY, v VARIANT)"""
TYPES = {"id": "decimal128(38, 0)", "n": "decimal128(12, 2)", "f": "double", "s": "string", "b": "bool",
         "day": "date32[day]", "moment": "timestamp[us]", "zoned": "timestamp[us, tz=UTC]",
         "raw": "binary", "v": "string"}
AT = datetime(2024, 1, 2, 3, 4, 5)
ROW = {"id": 1, "n": Decimal("1.25"), "f": 2.5, "s": "ä ☃", "b": True, "day": date(2024, 1, 2), "moment": AT,
       "zoned": AT.replace(tzinfo=timezone.utc), "raw": b"\0\xff", "v": '{"a":[1]}'}


@pytest.fixture(scope="module")
def values(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The values of a connection to a server with a few tables."""
    for module in ("fakesnow", "snowflake.sqlalchemy"):
        try:
            missing = importlib.util.find_spec(module) is None
        except ModuleNotFoundError:
            missing = True
        if missing:
            pytest.skip(f"{module} is not installed (docs/dependencies.md says how)")
    import snowflake.connector

    port = free_port()
    command = [sys.executable, "-m", "fakesnow", "-s", "--host", "127.0.0.1", "-p", str(port)]
    try:
        with running(command, lambda: listens(port), tmp_path_factory.mktemp("snowflake")):
            with snowflake.connector.connect(user="ada", password="x", account="acme", host="127.0.0.1", port=port,
                                             protocol="http", database="DB", schema="PUBLIC") as connection:
                for statement in (
                    EVERYTHING,
                    "INSERT INTO everything SELECT 1, 1.25, 2.5, 'ä ☃', true, '2024-01-02', '2024-01-02 03:04:05', "
                    "'2024-01-02 05:04:05+02:00', TO_BINARY('00ff', 'HEX'), PARSE_JSON('{\"a\": [1]}')",
                    "INSERT INTO everything (id, moment, zoned) VALUES "
                    "(2, '2024-01-02 03:04:05', '2024-01-02 03:04:05+00:00')",
                    "CREATE TABLE digits AS SELECT seq AS id, 'digit ' || seq AS text FROM "
                    "(SELECT ROW_NUMBER() OVER (ORDER BY 1) AS seq FROM TABLE(GENERATOR(ROWCOUNT => 20000)))",
                    "CREATE TABLE empty (x INT)",
                ):
                    connection.cursor().execute(statement)
            yield {"account": "acme", "url": f"http://127.0.0.1:{port}", "username": "ada", "password": "5 apples",
                   "database": "DB", "schema": "PUBLIC"}
    except NotThere as problem:
        pytest.skip(str(problem))


@pytest.fixture
def family(values: dict[str, str]) -> Any:
    return find("snowflake").open(values, loopback=True)


def test_a_table_and_a_query_are_exported(family: Any, tmp_path: Path) -> None:
    family.test()
    for location in ({"table_name": "digits"}, {"schema_name": "PUBLIC", "table_name": "DIGITS"},
                     {"query": "SELECT * FROM digits WHERE '%s' <> ':x'"}):
        table = exported(family, location, tmp_path)
        assert set(table.column(0).to_pylist()) == set(range(1, 20001))
        assert set(table.column(1).to_pylist()) == {f"digit {number}" for number in range(1, 20001)}


def test_snowflake_types_are_converted(family: Any, tmp_path: Path) -> None:
    table = exported(family, {"table_name": "everything"}, tmp_path)
    first, second = sorted(table.to_pylist(), key=lambda row: row["id"])
    assert types(table) == TYPES and first == ROW
    assert second == dict.fromkeys(TYPES) | {"id": 2, "moment": AT, "zoned": ROW["zoned"]}


def test_an_empty_result_is_one_shard_with_the_schema(family: Any, tmp_path: Path) -> None:
    table = exported(family, {"table_name": "empty"}, tmp_path)
    assert table.num_rows == 0 and types(table) == {"x": "decimal128(38, 0)"}
    assert exported(family, {"query": "SELECT id FROM digits WHERE id < 0"}, tmp_path).num_rows == 0


def test_a_missing_table_or_column_is_reported(family: Any) -> None:
    for location, words in (({"table_name": "digit"}, "no table 'digit'"),
                            ({"query": "SELECT nothing FROM digits"}, "(?i)nothing")):
        with pytest.raises(DataError, match=words) as problem:
            family.table(location)
        assert not isinstance(problem.value, DataUnavailable)


def test_an_invalid_address_is_rejected_with_the_reason(values: dict[str, str]) -> None:
    for address, words in (("ftp://x", "not a server address"), ("https://x:y", "not a valid address")):
        with pytest.raises(DataError, match=words):
            find("snowflake").open(values | {"url": address}, loopback=True).test()
    for address, words in (("http://db.example", "must be https"),
                           ("https://127.0.0.1", "does not connect to the address")):
        with pytest.raises(DataError, match=words):
            find("snowflake").open(values | {"url": address}).test()
