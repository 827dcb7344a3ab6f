"""The table of runs in a real browser: it follows changes and searches without losing the selection, and asks first."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from live_server import TOKEN, Live
from support import PATIENCE

from dlicmd.contract.states import FINISHED
from local_backend.api.guard import SESSION
from local_backend.console import places

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route

pytestmark = pytest.mark.integration


def test_the_table_follows_changes_and_keeps_the_selection(live: Live, browser: Browser) -> None:
    from playwright.sync_api import expect

    expect.set_options(timeout=PATIENCE * 1000)
    names = [live.submitted(f"--exec-start PyTorch --model-main main.py --appName run-{number} -- --lr 0.{number}")
             for number in range(1, 5)]
    live.run_on(names[0], "cpu-0")
    base = f"http://127.0.0.1:{live.port}{places.RUNS}"
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(PATIENCE * 1000)
    context.add_cookies([{"name": SESSION, "value": TOKEN, "url": base}])
    tab = context.new_page()
    problems: list[str] = []
    tab.on("pageerror", lambda problem: problems.append(str(problem)))
    try:
        tab.goto(base)
        rows, chosen, compare = tab.locator("tbody tr"), tab.locator("[data-count]"), tab.locator("[value=compare]")
        expect(rows).to_have_count(4)
        expect(compare).to_be_disabled()
        tab.check(f"#pick-{names[0]}")
        tab.check(f"#pick-{names[1]}")
        expect(chosen).to_have_text("2")
        expect(compare).to_be_enabled()

        live.move(names[0], FINISHED)
        live.submitted()
        expect(rows).to_have_count(5)
        expect(tab.locator(f"#run-{names[0]} .state")).to_have_text("finished")
        expect(tab.locator(f"#pick-{names[0]}")).to_be_checked()
        expect(chosen).to_have_text("2")

        tab.keyboard.press("/")
        tab.keyboard.type("lr=0.2")
        expect(rows).to_have_count(1)
        tab.wait_for_url(f"{base}?find=lr%3D0.2")
        expect(chosen).to_have_text("1")
        tab.click("button.star")
        expect(tab.locator("button.star")).to_have_attribute("aria-pressed", "true")
        tab.fill("#tag", "best")
        tab.click("[value=tag]")
        expect(tab.locator("a.tag")).to_have_text("best")

        tab.click("[value=delete]")
        expect(tab.locator("#ask-text")).to_contain_text("Selected: 1. Still active, to be stopped first: 1")
        tab.click("#ask [value=no]")
        expect(rows).to_have_count(1)
        tab.click("[value=delete]")
        tab.click("#ask [value=yes]")
        expect(tab.locator("#runs .empty")).to_be_visible()
        expect(tab.locator("#toast")).to_contain_text("1 run deleted")
        assert live.row(names[1]).deleted and problems == []
    finally:
        context.close()


def test_a_page_follows_changes_although_its_scripts_arrive_late(live: Live, browser: Browser) -> None:
    from playwright.sync_api import expect

    expect.set_options(timeout=PATIENCE * 1000)
    base = f"http://127.0.0.1:{live.port}{places.RUNS}"

    def late(route: Route) -> None:
        time.sleep(0.5)  # is the fault: htmx could begin meanwhile
        route.continue_()

    with browser.new_context() as context:
        context.add_cookies([{"name": SESSION, "value": TOKEN, "url": base}])
        tab = context.new_page()
        tab.route("**/htmx-sse*", late)
        tab.goto(base)
        live.submitted()
        expect(tab.locator("tbody tr")).to_have_count(1)


def test_a_page_connects_again_after_its_first_attempts_failed(live: Live, browser: Browser) -> None:
    from playwright.sync_api import expect

    expect.set_options(timeout=PATIENCE * 1000)
    base = f"http://127.0.0.1:{live.port}{places.RUNS}"
    with browser.new_context() as context:
        context.add_cookies([{"name": SESSION, "value": TOKEN, "url": base}])
        tab = context.new_page()
        refused: list[str] = []

        def trouble(route: Route) -> None:
            refused.append(route.request.url)
            if len(refused) == 1:
                route.abort()
            elif len(refused) == 2:
                route.fulfill(status=503)
            else:
                route.continue_()

        tab.route(f"**{places.LIVE}*", trouble)
        tab.goto(base)
        live.submitted()
        expect(tab.locator("tbody tr")).to_have_count(1)
        assert len(refused) >= 3
