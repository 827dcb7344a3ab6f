"""Charts of several runs in a real browser: they are hidden, saved, and drawn in groups."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from live_server import Live
from test_console_compare import record, submit
from test_console_run_columns import ended

from local_backend.console import places

if TYPE_CHECKING:
    from playwright.sync_api import Page as Tab

pytestmark = pytest.mark.integration

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def three(live: Live) -> list[str]:
    """Three runs: two with the same rate."""
    found = []
    for rate, values in ((1, [4.0, 2.0]), (1, [2.0, 1.0]), (2, [8.0, 8.0])):
        found.append(submit(live, "=run", "", f"--lr {rate}", b""))
        record(live, found[-1], loss=values, accuracy=values)
    return found


def address(live: Live, path: str) -> str:
    return f"http://127.0.0.1:{live.port}{places.RUNS}{path}"


def test_an_eye_hides_a_run_in_all_charts_of_the_tab(live: Live, tab: Tab, three: list[str]) -> None:
    from playwright.sync_api import expect

    query = "&".join(f"id={one}" for one in three)
    tab.goto(address(live, f"/compare?{query}"))
    off = tab.locator(".chart .u-legend .u-off")
    expect(tab.locator(".chart .u-legend .u-series")).to_have_count(8)
    tab.locator(f"[data-eye='{three[0]}']").press("Enter")
    expect(off).to_have_count(2)
    tab.reload()
    expect(off).to_have_count(2)
    expect(tab.locator(f"[data-eye='{three[0]}']")).to_have_attribute("aria-pressed", "false")
    tab.get_by_role("button", name="Log scale: loss").press("Enter")
    expect(off).to_have_count(2)
    tab.locator(f"[data-eye='{three[1]}']").press("Enter")
    tab.get_by_role("button", name="Show all runs").press("Enter")
    expect(off).to_have_count(0)
    expect(tab.locator("[data-eyes]")).to_be_hidden()


def test_a_chart_is_saved_as_a_picture_and_as_a_table(live: Live, tab: Tab, three: list[str], tmp_path: Path) -> None:
    query = "&".join(f"id={one}" for one in three)
    tab.goto(address(live, f"/compare?{query}"))
    tab.wait_for_selector("#chart-1 .u-legend")
    saved = tmp_path / "saved"
    with tab.expect_download() as picture:
        tab.get_by_role("button", name="Save loss as PNG").press("Enter")
    picture.value.save_as(saved)
    assert picture.value.suggested_filename == "loss.png" and saved.read_bytes().startswith(PNG)
    with tab.expect_download() as table:
        tab.get_by_role("button", name="Save the values of loss as CSV").press("Enter")
    table.value.save_as(saved)
    rows = list(csv.reader(saved.read_text().splitlines()))
    assert rows[0] == ["step", *(f"'=run ({one})" for one in three)], "no name is a formula"
    assert rows[1:] == [["0", "4", "2", "8"], ["1", "2", "1", "8"]]


def test_a_group_is_one_curve_that_a_keyboard_reads(live: Live, tab: Tab, three: list[str]) -> None:
    from playwright.sync_api import expect

    query = "&".join(f"id={one}" for one in three)
    tab.goto(address(live, f"/compare?{query}"))
    tab.get_by_role("link", name="lr", exact=True).press("Enter")
    plot = tab.locator("#chart-1 .plot")
    expect(tab.locator("#chart-1 .u-legend .u-series:visible")).to_have_count(3)
    plot.press("End")
    expect(tab.locator("#chart-1 [aria-live]")).to_have_text("step 1, lr=1 (2 runs) 1.5, lr=2 (1 run) 8")
    tab.locator("#chart-1 summary").press("Enter")
    expect(tab.locator("#chart-1 tbody tr").last).to_have_text("11.512888")


def test_charts_beside_the_table_follow_its_search(live: Live, tab: Tab) -> None:
    from playwright.sync_api import expect

    for rate in ("0.1", "0.1", "0.2"):
        record(live, ended(live, {"loss": 1.0}, "--lr", rate), loss=[2.0, 1.0])
    tab.goto(address(live, ""))
    tab.get_by_role("link", name="Charts").press("Enter")
    curves = tab.locator(".chart .u-legend .u-series")
    expect(curves).to_have_count(4)
    tab.fill("#find", "lr=0.1")
    expect(curves).to_have_count(3)
    tab.locator("[data-eye]").first.press("Enter")
    expect(tab.locator(".chart .u-legend .u-off")).to_have_count(1)
    tab.wait_for_url("**find=lr%3D0.1&charts=1")


def test_many_charts_are_found_by_name(live: Live, tab: Tab, three: list[str]) -> None:
    from playwright.sync_api import expect

    for run in three:
        record(live, run, **{f"norm/layer{number}": [1.0, 2.0] for number in range(8)})
    tab.goto(address(live, f"/compare?{'&'.join(f'id={one}' for one in three)}"))
    charts = tab.locator(".chart:visible")
    expect(charts).to_have_count(8)
    tab.get_by_label("Find charts by name").fill("LAYER3")
    expect(charts).to_have_count(1)
    expect(charts).to_have_attribute("aria-label", "norm/layer3")
    tab.goto(address(live, f"/{three[0]}"))
    tab.get_by_label("Find charts by name").press_sequentially("layer7")
    expect(tab.locator(".chart[data-axes]:visible")).to_have_count(1)
