"""The rows of table files from a place on: every row is shown once, and each part reads little."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from local_backend.data.rows import WINDOW, rows_from

_CELLS = st.text(st.characters(blacklist_characters="\0\r", blacklist_categories=["Cs"]), max_size=8)


def parts(name: str, content: bytes, most: int) -> list[dict[str, Any]]:
    """Return all parts of a file."""
    found, at = list[dict[str, Any]](), 0
    while True:
        found.append(rows_from(name, io.BytesIO(content), most, at))
        if "next" not in found[-1]:
            return found
        assert found[-1]["next"] > at
        at = found[-1]["next"]


def rows_of(found: list[dict[str, Any]]) -> list[list[Any]]:
    return [row for part in found for row in part["rows"]]


@given(st.lists(st.lists(_CELLS, min_size=2, max_size=2), max_size=12), st.integers(1, 5))
def test_parts_of_csv_have_each_row_once(table: list[list[str]], most: int) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows([["1", "2"], *table])
    assert rows_of(parts("a.csv", text.getvalue().encode(), most)) == [["1", "2"], *table]


@pytest.mark.parametrize("most", [1, 7, 1000])
@pytest.mark.parametrize("groups", [1, 10, 100])
def test_parts_of_parquet_have_each_row_once(most: int, groups: int) -> None:
    buffer = io.BytesIO()
    pq.write_table(pa.table({"id": range(30)}), buffer, row_group_size=groups)
    found = parts("a.parquet", buffer.getvalue(), most)
    assert rows_of(found) == [[number] for number in range(30)] and found[0]["rowCount"] == 30
    assert rows_from("a.parquet", io.BytesIO(buffer.getvalue()), most, 99)["rows"] == []


def test_parts_of_parquet_begin_far_inside_of_a_group() -> None:
    buffer = io.BytesIO()
    pq.write_table(pa.table({"id": range(20_000)}), buffer, row_group_size=20_000)
    for at in (8191, 8192, 19_000):
        found = rows_from("a.parquet", io.BytesIO(buffer.getvalue()), 3, at)
        assert found["rows"] == [[at], [at + 1], [at + 2]] and found["next"] == at + 3


def test_wide_rows_make_smaller_parts() -> None:
    lines = [f"{number},{'x' * 150}\n" * 1 for number in range(4000)]
    found = parts("a.csv", "".join(lines).encode(), 5000)
    assert len(found) == 3 and rows_of(found) == [[str(number), "x" * 150] for number in range(4000)]


def test_quotes_over_the_end_of_a_part_stay_whole() -> None:
    cell = "\n".join("y" * 100 for _ in range(WINDOW // 300))
    table = [[str(number), cell] for number in range(7)]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(table)
    assert [row[0] for row in rows_of(parts("a.csv", text.getvalue().encode(), 100))] == [row[0] for row in table]


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_a_row_that_is_longer_than_a_part_is_said(name: str) -> None:
    found = rows_from(name, io.BytesIO(b'"' + b"x" * WINDOW + b'"\n1\n'), 9)
    assert (found["rows"], found["stopped"], found.get("next")) == ([], "long", None)


@pytest.mark.parametrize(("content", "rows", "stopped"), [
    (b"1\n2", ["1", "2"], None), (b'1\n{"a"', ["1"], "incomplete"), (b'1\n{"a"\n2\n', ["1"], "invalid"),
    (b"1\n" + b"[" * 100_000 + b"\n", ["1"], "invalid"), (b"\n1\r\n\n", ["1"], None),
])
def test_lines_before_one_that_is_not_json_are_shown(content: bytes, rows: list[str], stopped: str | None) -> None:
    found = rows_from("a.jsonl", io.BytesIO(content), 100)
    assert ([row for [row] in found["rows"]], found.get("stopped"), found.get("next")) == (rows, stopped, None)


def test_the_names_of_the_columns_are_in_each_part() -> None:
    for between, ending in ((",", "csv"), (";", "csv"), ("\t", "tsv")):
        content = between.join(["\ufeffepoch", "loss"]) + "\n" + "".join(f"{n}{between}0.5\n" for n in range(5))
        found = parts(f"a.{ending}", content.encode(), 3)
        assert [[one["name"] for one in part["schema"]] for part in found] == [["epoch", "loss"]] * 2
        assert [len(part["rows"]) for part in found] == [3, 2]
    for content in ("1,2\n3,4\n", "a,a\n1,2\n", "a,\n1,2\n", "a,b\n"):
        assert "schema" not in rows_from("a.csv", io.BytesIO(content.encode()), 3), content


def test_text_that_is_not_utf_8_is_read_as_latin_1() -> None:
    content = "name,ort\nMüller,Köln\n".encode("latin-1")
    found = rows_from("a.csv", io.BytesIO(content), 9)
    assert (found["rows"], found["encoding"]) == ([["Müller", "Köln"]], "latin-1")
    assert rows_from("a.jsonl", io.BytesIO(json.dumps("é").encode()), 9).get("encoding") is None
