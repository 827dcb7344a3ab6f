"""Charts of the metrics beside the table of runs."""

from __future__ import annotations

import json
import re

from live_server import Live
from page_desk import get, words
from test_console_compare import record
from test_console_run_columns import ended

RUNS = "/console/runs"


def charts(text: str) -> dict[str, str]:
    """Return the address of each chart by the name of its metric."""
    found = re.findall(r'aria-label="([^"]*)" data-chart="([^"]*)"', text)
    return {name: url.replace("&amp;", "&") for name, url in found}


def test_charts_have_the_metrics_of_the_columns_of_all_listed_runs(live: Live) -> None:
    first, second = ended(live, {"val_loss": 1.0, "f1": 0.5}, "--lr", "0.1"), ended(live, {"loss": 2.0}, "--lr", "0.2")
    third = ended(live, {"loss": 3.0}, "--lr", "0.3")
    for run, name in ((first, "val_loss"), (second, "loss"), (third, "loss")):
        record(live, run, **{name: [4.0, 1.0]})
    text = get(live, f"{RUNS}?charts=1&column=metric.loss&column=param.lr").text
    found = charts(text)
    assert list(found) == ["loss", "val_loss"], "the column of losses shows both"
    drawn = json.loads(get(live, f"{found['loss']}&width=100").body)["series"]
    assert [(one["run"], one["color"]) for one in drawn] == [(third, 1), (second, 2)], "in the order of the table"
    assert f'data-eye="{first}"' in text
    narrow = charts(get(live, f"{RUNS}?charts=1&find=lr=0.1").text)
    assert json.loads(get(live, f"{narrow['val_loss']}&width=100").body)["series"][0]["y"] == [4.0, 1.0], "of one run"
    assert charts(get(live, f"{RUNS}?column=metric.loss").text) == {}


def test_links_of_the_page_keep_the_charts(live: Live) -> None:
    ended(live, {"loss": 1.0})
    text = get(live, f"{RUNS}?charts=1").text
    for part in ("sort=name&amp;charts=1", "favorites=1&amp;charts=1", 'name="charts" value="1"'):
        assert part in text, part
    assert "none of the metrics" in words(get(live, f"{RUNS}?charts=1&column=param.lr"))
    assert "No runs match" in words(get(live, f"{RUNS}?charts=1&find=nothing"))
