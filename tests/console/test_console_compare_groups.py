"""Compared runs in groups with equal parameters."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from live_server import Live
from page_desk import get, words
from test_console_compare import COMPARE, query, record, submit


@pytest.fixture
def four(live: Live) -> list[str]:
    """Four runs: two with each rate, in different spellings, and two with each seed."""
    found = []
    for rate, seed, values in (("0.1", 1, [4.0, 1.0]), ("0.10", 2, [2.0, 3.0]), ("0.02", 1, [8.0]), ("0.02", 2, [])):
        found.append(submit(live, f"r{seed}", "", f"--lr {rate} --seed {seed} --name r{rate}{seed}", b""))
        if values:
            record(live, found[-1], loss=values)
    return found


def drawn(live: Live, ids: list[str], more: str) -> list[dict[str, Any]]:
    path = f"{COMPARE}/curves?{query(ids)}&metric=loss&width=100{more}"
    series: list[dict[str, Any]] = json.loads(get(live, path).body)["series"]
    return series


def test_a_group_has_the_mean_of_its_curves_and_a_band(live: Live, four: list[str]) -> None:
    low, high = drawn(live, four, "&group=param.lr")
    assert [low["name"], high["name"]] == ["lr=0.02 (1 run)", "lr=0.1 (2 runs)"], "the fourth run has no loss"
    assert [low["y"], low["low"], low["high"]] == [[8.0]] * 3
    assert [high["x"], high["y"], high["low"], high["high"]] == [[0, 1], [3.0, 2.0], [2.0, 1.0], [4.0, 3.0]]
    error = drawn(live, four, "&group=param.lr&spread=error")[1]
    assert error["y"] == [3.0, 2.0] and error["low"] == pytest.approx([2.0, 1.0])
    both = drawn(live, four, "&group=param.lr&group=param.seed")
    assert [one["name"] for one in both] == [
        "lr=0.02, seed=1 (1 run)", "lr=0.1, seed=1 (1 run)", "lr=0.1, seed=2 (1 run)"]


def test_a_curve_counts_between_its_first_and_its_last_point_alone(live: Live, four: list[str]) -> None:
    record(live, four[0], loss=[0.0, 0.0, 6.0, 6.0])
    group = drawn(live, four, "&group=param.lr")[1]
    assert group["x"] == [0, 1, 2, 3] and group["y"] == [1.0, 1.5, 6.0, 6.0]


def test_groups_are_offered_by_values_that_several_runs_share(live: Live, four: list[str]) -> None:
    text = get(live, f"{COMPARE}?{query(four)}").text
    offered = re.findall(r'<a class="button chip" href="[^"]*group=([^"&]*)"', text)
    assert offered == ["param.lr", "param.seed", "name"], "each run has another value of --name"
    assert 'id="groups"' not in text


def test_a_table_has_the_distribution_of_each_group(live: Live, four: list[str]) -> None:
    page = get(live, f"{COMPARE}?{query(four)}&group=param.lr")
    table = page.text.partition('id="groups"')[2]
    lines = [" ".join(re.sub(r"<[^>]*>", " ", row).split())
             for row in re.findall(r'<tr><th scope="row">(.*?)</tr>', table, re.DOTALL)]
    assert lines[:2] == ["lr=0.02 2 1 with values 8 8 8 8 8 8", "lr=0.1 2 1.5 ★ 1 1.25 1.5 1.75 2"]
    chart = re.search(r'data-chart="([^"]*metric=loss)"', page.text)
    assert chart and "group=param.lr" in chart[1]
    assert "best loss" in words(page)
    metrics = page.text.partition("Metrics</h2>")[2]
    colors = re.findall(r'class="swatch (k\d)', metrics.partition("</thead>")[0])
    assert colors == ["k2", "k2", "k1", "k1"], "each run has the color of its group"


def test_impossible_groups_are_refused_in_a_sentence(live: Live, four: list[str]) -> None:
    path = f"{COMPARE}/curves?{query(four)}&metric=loss&width=100"
    assert get(live, f"{path}&group=param.lr&spread=all").error == (400, "query.value")
    many = "".join(f"&group=param.p{number}" for number in range(6))
    assert get(live, path + many).error == (400, "query.value")
    assert get(live, f"{COMPARE}?{query(four)}{many}").status == 400
    assert drawn(live, four, "&group=param.none")[0]["name"] == "none=– (3 runs)"


def test_runs_with_values_at_the_end_of_floats_have_a_mean(live: Live) -> None:
    ids = [submit(live, "r", "", f"--lr 1 --seed {seed}", b"") for seed in range(3)]
    for run in ids:
        record(live, run, loss=[1.7e308])
    assert "1.7e+308" in get(live, f"{COMPARE}?{query(ids)}&group=param.lr").text
    [series] = drawn(live, ids, "&group=param.lr&spread=error")
    assert series["y"] == pytest.approx([1.7e308]) and series["high"] == pytest.approx([1.7e308])


def test_groups_with_other_values_have_other_titles(live: Live) -> None:
    ids = [submit(live, "r", "", words, b"") for words in (
        "--at 20261129063801123", "--at 20261129063801124", "--at 1234567890123", "--at 1234567890124", "--at",
        "--at 1")]
    for run in ids:
        record(live, run, loss=[1.0])
    titles = [one["name"] for one in drawn(live, ids, "&group=param.at")]
    assert titles == [f"at={value} (1 run)" for value in (
        "1", "1234567890123", "1234567890124", "20261129063801123", "20261129063801124", "yes")]
