"""The common steps of every table export to Parquet, with families defined in this module."""

from __future__ import annotations

import json
import resource
import threading
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import sqlalchemy
from sqlalchemy.engine import URL
from tabling import Tally, exported, types

from local_backend.data.columns import batches, seen_type
from local_backend.data.errors import DataError, DataUnavailable
from local_backend.data.export import export_table
from local_backend.data.kind import Extent, Kind, SourceTable, TableFamily
from local_backend.data.kinds.sql import Sql
from local_backend.data.progress import Cancelled


class Toy(TableFamily):
    """A family with 3,000 counted rows, which then calls `happens`."""

    happens: Any = None
    schema = pyarrow.schema([("x", pyarrow.int64())])

    def test(self) -> None:
        pass

    def table(self, location: Mapping[str, Any]) -> SourceTable:
        return SourceTable(self.schema, version="v7")

    def batches(self, location: Mapping[str, Any], most_rows: int | None = None) -> Iterator[pyarrow.RecordBatch]:
        for start in range(0, 3000, 1000):
            yield pyarrow.record_batch([pyarrow.array(range(start, start + 1000), pyarrow.int64())], self.schema)
        if self.happens is not None:
            self.happens()


def toy(happens: Any = None) -> Toy:
    family = Toy(Kind("toy", "Toy", Toy), {})
    family.happens = happens
    return family


def test_an_export_writes_private_files_and_a_schema(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    delivered = export_table(toy(), {}, folder, Tally())
    assert (delivered.path, delivered.files, delivered.version) == (folder, 2, "v7")
    assert json.loads((folder / "_schema.json").read_text())["shards"][0]["rows"] == 3000
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}


@pytest.mark.parametrize("problem", [DataUnavailable("gone"), DataError("bad"), OSError(28, "No space left on device")])
def test_a_broken_export_leaves_no_files_and_the_next_one_succeeds(tmp_path: Path, problem: Exception) -> None:
    def breaks() -> None:
        raise problem

    with pytest.raises(type(problem), match=str(problem).rpartition("] ")[2]):
        export_table(toy(breaks), {}, tmp_path, Tally())
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ".part-00000.parquet.tmp").write_bytes(b"of one that was killed")
    (tmp_path / "part-00009.parquet").write_bytes(b"of one that was killed")
    assert exported(toy(), {}, tmp_path).num_rows == 3000


def test_a_full_disk_leaves_no_files(tmp_path: Path) -> None:
    """The limit on the file size of this process acts as a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            export_table(toy(), {}, tmp_path, Tally())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_a_hanging_reader_does_not_delay_a_cancellation(tmp_path: Path) -> None:
    """The reader never learns that its rows are not wanted."""
    hangs, over = threading.Event(), threading.Event()

    def hang() -> None:
        hangs.set()
        over.wait()

    with pytest.raises(Cancelled):
        export_table(toy(hang), {}, tmp_path, Tally(hangs.is_set))
    over.set()
    assert list(tmp_path.iterdir()) == []


class Sqlite(Sql):
    """The common code of all SQL dialects, on an SQLite file."""

    def url(self, catalog: str) -> URL:
        return URL.create("sqlite", database=self.values["database"])


@pytest.fixture
def sqlite(tmp_path: Path) -> Sqlite:
    file = tmp_path / "x.db"
    with sqlalchemy.create_engine(f"sqlite:///{file}").begin() as connection:
        connection.exec_driver_sql("CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT, born DATE, height REAL)")
        connection.exec_driver_sql("INSERT INTO people VALUES (1, 'Ada', '1815-12-10', 1.6), (2, NULL, NULL, NULL)")
    return Sqlite(Kind("sqlite", "SQLite", Sqlite), {"database": str(file)})


def test_any_sql_dialect_is_exported_and_checked(sqlite: Sqlite, tmp_path: Path) -> None:
    sqlite.test()
    folder = tmp_path / "out"
    table = exported(sqlite, {"table_name": "people"}, folder)
    assert types(table) == {"id": "int64", "name": "string", "born": "date32[day]", "height": "double"}
    assert table.to_pylist() == [{"id": 1, "name": "Ada", "born": date(1815, 12, 10), "height": 1.6},
                                 {"id": 2, "name": None, "born": None, "height": None}]
    assert exported(sqlite, {"query": "SELECT count(*) AS n FROM people"}, folder).to_pylist() == [{"n": 2}]
    assert types(exported(sqlite, {"query": "SELECT id, name FROM people WHERE id = 9"}, folder)) == {
        "id": "string", "name": "string"}
    assert next(sqlite.batches({"table_name": "people"}, 1)).num_rows == 1
    for location, rows in (({"table_name": "people"}, 2), ({"query": "SELECT name FROM people WHERE id > 1;"}, 1)):
        assert sqlite.extent(location, 60) == Extent(rows)
    with pytest.raises(DataError, match=r"'people2'.*'people'"):
        exported(sqlite, {"table_name": "people2"}, folder)
    with pytest.raises(DataError, match="no such column: absent"):
        exported(sqlite, {"query": "SELECT absent FROM people"}, folder)
    with pytest.raises(DataError, match="'a'"):
        exported(sqlite, {"query": "SELECT 1 AS a, 2 AS a"}, folder)


@pytest.mark.parametrize(("values", "kind"), [
    ([], "string"), ([None], "string"), ([True, None], "bool"), ([1, 2], "int64"), ([1, 2.5], "double"),
    ([2**64 - 1, 1], "uint64"), ([2**64], "string"), ([-1, 2**63], "string"), ([1, "x"], "string"), ([b"x"], "binary"),
    ([datetime(2024, 1, 1)], "timestamp[us]"), ([datetime(2024, 1, 1, tzinfo=timezone.utc)], "timestamp[us, tz=UTC]"),
    ([date(2024, 1, 1)], "date32[day]"), ([time(1)], "time64[us]"), ([timedelta(1)], "duration[us]"),
    ([Decimal("1.25"), Decimal("3")], "decimal128(38, 2)"), ([Decimal("1e40"), Decimal("0.1")], "decimal256(76, 1)"),
    ([Decimal("NaN")], "string"), ([{"a": 1}], "string"), ([[1]], "string"),
])
def test_the_type_of_a_column_is_inferred_from_its_values(values: list[Any], kind: str) -> None:
    assert str(seen_type(values)) == kind


@pytest.mark.parametrize(("kind", "value", "becomes"), [
    (pyarrow.string(), {"a": [1, date(2024, 1, 2)]}, '{"a": [1, "2024-01-02"]}'), (pyarrow.string(), b"x", "x"),
    (pyarrow.string(), 1.5, "1.5"), (pyarrow.int64(), Decimal("7"), 7), (pyarrow.bool_(), b"\1", True),
    (pyarrow.decimal128(5, 2), "1.25", Decimal("1.25")), (pyarrow.binary(), "ä", "ä".encode()),
    (pyarrow.date32(), datetime(2024, 1, 2, 3), date(2024, 1, 2)),
    (pyarrow.timestamp("us"), datetime(2024, 1, 2, tzinfo=timezone.utc), datetime(2024, 1, 2)),
    (pyarrow.timestamp("us", "UTC"), datetime(2024, 1, 2), datetime(2024, 1, 2, tzinfo=timezone.utc)),
    (pyarrow.string(), b"\xff", None), (pyarrow.int64(), Decimal("7.5"), None), (pyarrow.int8(), 300, None),
    (pyarrow.decimal128(5, 2), "1.255", None), (pyarrow.bool_(), 2, None), (pyarrow.date32(), "0000-00-00", None),
    (pyarrow.float64(), "much", None), (pyarrow.uint64(), -1, None), (pyarrow.int64(), float("inf"), None),
])
def test_values_of_drivers_are_converted_exactly_or_rejected(kind: pyarrow.DataType, value: Any, becomes: Any) -> None:
    schema = pyarrow.schema([("c", kind)])
    rows = iter([[(value,), (None,)], []])
    if becomes is None:
        with pytest.raises(DataError, match="column 'c'"):
            next(batches(lambda wish: next(rows), schema))
    else:
        (batch,) = batches(lambda wish: next(rows), schema)
        assert batch.column(0).to_pylist() == [becomes, None]


def test_batches_of_wide_rows_are_shorter() -> None:
    asked: list[int] = []

    def rows(wish: int) -> list[tuple[str]]:
        asked.append(wish)
        return [] if len(asked) == 6 else [("x" * (10 if len(asked) < 3 else 2**20),)] * min(wish, 50)

    assert len(list(batches(rows, pyarrow.schema([("c", pyarrow.string())])))) == 5
    assert asked[1] > asked[0] and asked[2] > asked[1] and 1 <= asked[4] < 10
