"""The form that starts a search in a real browser: its command follows the fields, and Enter starts the search."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from live_server import Live

from local_backend.console import places

if TYPE_CHECKING:
    from playwright.sync_api import Page as Tab

pytestmark = pytest.mark.integration


def test_a_search_is_started(live: Live, tab: Tab) -> None:
    from playwright.sync_api import expect

    run = live.submitted("--exec-start PyTorch --model-main main.py --appName digits -- --lr 0.1")
    tab.goto(f"{places.NEW_SEARCH}?run={run}")
    expect(tab.locator("input[name=parameter]")).to_have_value("lr")
    tab.locator("input[name=values]").fill("log:1e-4..1e-1")
    tab.locator("input[name=metric]").fill("accuracy")
    tab.locator("input[name=name]").focus()
    command = tab.locator("#command pre")
    expect(command).to_contain_text("--param lr=log:1e-4..1e-1 --metric accuracy:maximize")
    expect(command).to_contain_text("-- --lr '{lr}'")
    tab.get_by_role("button", name="Add a parameter").click()
    expect(tab.locator("input[name=parameter]")).to_have_count(2)
    expect(tab.locator("input[name=values]").first).to_have_value("log:1e-4..1e-1")
    tab.locator("input[name=trials]").fill("none")
    tab.locator("input[name=name]").fill("found")
    tab.keyboard.press("Enter")
    expect(tab.locator("input[name=trials]")).to_have_attribute("aria-invalid", "true")
    tab.locator("input[name=trials]").fill("2")
    tab.get_by_role("button", name="Start the search").click()
    tab.wait_for_url(f"**{places.SEARCHES}/found")
    expect(tab.locator("h1")).to_have_text("found")
