"""The content of a location, and the check that a query only reads."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from injections import QUERIES

from dlicmd.contract.data_sources import LONGEST
from local_backend.data.errors import DataError
from local_backend.data.locations import check_query, selection_of


def test_a_location_names_a_table_or_a_query() -> None:
    found = selection_of({"table_name": "t", "schema_name": "s", "catalog_name": "c", "bucket": "of no interest"})
    assert (found.title, found.query) == ("c.s.t", "")
    assert selection_of({"query": "SELECT 1"}).query == "SELECT 1"
    assert selection_of({"collection": "c"}, "collection").table == "c"


@pytest.mark.parametrize(("location", "words"), [
    ({}, "either 'table_name' or 'query'"),
    ({"table_name": "t", "query": "SELECT 1"}, "not both"),
    ({"table_name": 7}, "'table_name' is not a valid name"),
    ({"table_name": "a\0b"}, "'table_name' is not a valid name"),
    ({"table_name": "t" * 256}, "at most 255"),
    ({"table_name": "t", "schema_name": ["s"]}, "'schema_name' is not a valid name"),
])
def test_an_invalid_location_is_rejected_with_the_reason(location: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        selection_of(location)


@pytest.mark.parametrize("query", [
    "SELECT * FROM t", "  select a, 'it''s; -- drop' AS b FROM \"odd;name\" WHERE a > 1 ;  ",
    "WITH x AS (SELECT 1 AS a) SELECT * FROM x", "(SELECT 1)", "VALUES (1), (2)",
    "SELECT replace(a, 'x', 'y'), updated, deleted_at FROM t ORDER BY 1", "SELECT arr[1], j #>> '{a}' FROM t",
])
def test_a_query_that_only_reads_is_accepted(query: str) -> None:
    assert check_query(query) == query.strip().rstrip("; ")


@pytest.mark.parametrize(
    "query", [*QUERIES, "", "SELECT 'open", 7, ["SELECT 1"], "SELECT 1\0", "SELECT 1" * 10**5])
def test_a_query_that_may_write_is_refused(query: Any) -> None:
    with pytest.raises(DataError):
        check_query(query)


@pytest.mark.parametrize(("query", "said"), [
    ({"a": 1}, "'query' must be a text for this kind of server"),
    ("SELECT 1" + " " * LONGEST, "has 20,008 characters; the limit is 20,000"),
])
def test_a_query_of_wrong_type_or_length_is_rejected_with_the_reason(query: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        check_query(query)


def test_words_and_signs_of_one_kind_of_server_are_refused() -> None:
    with pytest.raises(DataError, match="'waitfor'"):
        check_query("SELECT 1 WAITFOR DELAY '1'", frozenset({"waitfor"}))
    with pytest.raises(DataError, match="'#'"):
        check_query("SELECT 1 # '", signs=frozenset("#"))


@example("'''\"'\"", '"')
@given(st.text(alphabet="'\"`[]$\\;-a \n", max_size=20), st.text(alphabet="'\"`[]$\\;-a \n", max_size=20))
def test_a_second_statement_is_detected_in_any_context(before: str, after: str) -> None:
    """Except inside quotes without a backslash, where the statement is text for every server."""
    query = f"SELECT {before}; DROP TABLE victim {after}"
    try:
        check_query(query)
    except DataError:
        return
    quote = ""
    for sign in before:
        if sign in "'\"`" and quote in ("", sign):
            quote = "" if quote else sign
    assert quote
