"""The saved views of the table of runs."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from live_server import Live
from page_desk import get, post, words

from dlicmd.contract import wire
from local_backend.console.run_views import query_of_view, view_of
from local_backend.console.runs_query import SORTS, STATES, RunsQuery
from local_backend.run_values import ValueName
from local_backend.services.saved_views import StoredView

DIALOG, CHANGE = "/console/runs/parts/views", "/console/runs/views"
COLUMNS = some.lists(some.sampled_from([ValueName("metric", "f1"), ValueName("metric", "val/loss"),
                                        ValueName("param", "lr")]), unique=True).map(tuple)


def links(live: Live, query: str = "") -> list[str]:
    """Return the addresses of the views in the dialog."""
    return [html.unescape(one) for one in re.findall(r'<li><a href="([^"]*)"', get(live, f"{DIALOG}?{query}").text)]


@given(some.builds(
    RunsQuery, find=some.sampled_from(["", "digits", "lr<0.1 tag:best"]), state=some.sampled_from(["", *STATES]),
    favorites=some.booleans(), everyone=some.booleans(), sort=some.sampled_from([*SORTS, "metric.f1", "metric.loss",
                                                                                "param.lr"]),
    back=some.booleans(), columns=COLUMNS))
def test_a_view_leads_to_the_table_that_was_saved(query: RunsQuery) -> None:
    assert query_of_view(view_of(query, "x")) == query


@pytest.mark.parametrize(("order", "sort", "back"), [
    ("", "id", False), ("id", "id", True), ("f1:desc", "metric.f1", False), ("metric.loss", "metric.loss", False),
    ("param.lr:desc", "param.lr", True), ("duration:asc", "duration", True),
])
def test_views_of_programs_have_the_order_of_the_list(order: str, sort: str, back: bool) -> None:
    query = query_of_view(StoredView("x", sort_by=order))
    assert (query.sort, query.back) == (sort, back)


def test_the_dialog_saves_lists_and_deletes_views(live: Live) -> None:
    query = "find=tag%3Abest&state=finished&sort=metric.f1&column=param.lr"
    assert "No views yet" in words(get(live, DIALOG))
    assert post(live, CHANGE, {"query": query, "name": " best f1 "}).headers["location"] == f"/console/runs?{query}"
    saved: list[dict[str, Any]] = live.call("GET", wire.VIEWS, base="").json()
    assert saved == [{"name": "best f1", "find": "tag:best", "state": "finished", "sort_by": "metric.f1:desc",
                      "all": False, "columns": ["param.lr"]}]
    assert links(live) == [f"/console/runs?{query}"]
    assert "aria-current" in get(live, f"{DIALOG}?{query}").text
    assert "aria-current" not in get(live, f"{DIALOG}?{query}&back=1").text
    assert post(live, CHANGE, {"query": query, "name": ""}).status == 400
    assert post(live, CHANGE, {"query": "", "delete": "best f1"}).status == 303
    assert links(live) == []
    assert post(live, CHANGE, {"query": "", "delete": "best f1"}).status == 404
