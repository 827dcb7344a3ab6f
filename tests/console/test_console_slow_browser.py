"""Pages on a slow or lost connection, in a real browser: no click is doubled, no old answer replaces a newer one, and
no text is lost."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from live_server import Live
from modelling import Modelling
from support import PATIENCE

from dlicmd.contract.states import FINISHED, PENDING, RUNNING
from local_backend.console import places

if TYPE_CHECKING:
    from playwright.sync_api import Page as Tab
    from playwright.sync_api import Route

pytestmark = pytest.mark.integration


class Held:
    """Requests of a page to a place, which wait until the test lets them go."""

    def __init__(self, tab: Tab, place: str, method: str = "GET") -> None:
        self.tab, self.place, self.method = tab, place, method
        self.routes: list[Route] = []
        tab.route(place, self._keep)

    def _keep(self, route: Route) -> None:
        if route.request.method == self.method:
            self.routes.append(route)
        else:
            route.fallback()

    def wait(self, count: int) -> None:
        """Wait until so many requests are held."""
        end = time.monotonic() + PATIENCE
        while len(self.routes) < count and time.monotonic() < end:
            self.tab.evaluate("0")
        assert len(self.routes) >= count

    def go(self, *order: int) -> None:
        """Let requests go in this order, else all. The page may have given up some."""
        for number in order or range(len(self.routes)):
            with suppress(Exception):
                self.routes[number].continue_()

    def lose(self) -> None:
        """Lose the connection of all held requests, and hold no more."""
        for one in self.routes:
            one.abort()
        self.tab.unroute(self.place)


def finished(live: Live, name: str = "first") -> str:
    """Return a finished run with a result."""
    run = live.submitted(f"--exec-start PyTorch --model-main main.py --appName {name}")
    live.paths(run).model.mkdir(parents=True, exist_ok=True)
    (live.paths(run).model / "kernel.py").write_bytes(b"print(1)\n")
    live.move(run, PENDING, RUNNING, FINISHED)
    return run


def settled(tab: Tab) -> None:
    """Wait until the browser has sent everything that it was going to send: a request of its own comes after."""
    tab.evaluate("fetch('/console/static/none').then((answer) => answer.text())")


#: Counts the forms that the browser would send, and sends none.
COUNT = """() => {
  globalThis.sent = 0;
  addEventListener("submit", (event) => { if (!event.defaultPrevented) sent += 1; event.preventDefault(); });
}"""


def test_a_second_click_runs_nothing_twice(live: Live, tab: Tab) -> None:
    run = finished(live)
    tab.goto(f"{places.RUNS}/{run}")
    tab.evaluate(COUNT)
    button = tab.get_by_role("button", name="Run again")
    button.dblclick()
    button.click()
    tab.wait_for_function("() => sent")
    settled(tab)
    assert tab.evaluate("sent") == 1
    tab.evaluate("() => { dispatchEvent(new PageTransitionEvent('pageshow', {persisted: true})); }")
    button.click()  # on the way back to the page, the button works again
    tab.wait_for_function("() => sent === 2")


def test_a_refused_form_is_sent_again_and_an_accepted_one_once(live: Live, tab: Tab) -> None:
    from playwright.sync_api import expect

    tab.goto(places.HARDWARE)
    save = tab.get_by_role("button", name="Save")
    tab.fill("[name=name]", "big")
    tab.fill("[name=memory]", "much")
    save.click()
    expect(tab.locator("#hardware-problem")).to_contain_text("much")
    tab.fill("[name=memory]", "8g")
    sent = Held(tab, f"**{places.HARDWARE}", "POST")
    save.dblclick()
    save.click()
    sent.wait(1)
    settled(tab)
    assert len(sent.routes) == 1
    sent.go()
    expect(tab.locator("tr", has_text="big").locator("td").nth(2)).to_have_text("1")


def test_a_change_that_got_no_answer_is_said_and_can_be_repeated(live: Live, tab: Tab) -> None:
    from playwright.sync_api import expect

    tab.goto(places.HARDWARE)
    tab.fill("[name=name]", "big")
    sent = Held(tab, f"**{places.HARDWARE}", "POST")
    tab.get_by_role("button", name="Save").click()
    sent.wait(1)
    sent.lose()
    expect(tab.locator("#toast")).to_contain_text("check whether it was stored")
    expect(tab.locator("[name=name]")).to_have_value("big")
    tab.get_by_role("button", name="Save").click()
    expect(tab.locator("tr", has_text="big")).to_be_visible()


def test_a_form_keeps_its_page_while_the_server_is_away(live: Live, tab: Tab) -> None:
    from playwright.sync_api import expect

    run = finished(live)
    tab.goto(f"{places.RUNS}/{run}")
    tab.get_by_role("button", name="Save model").click()
    tab.fill("#save-model [name=name]", "kept")
    tab.route("**/*", lambda route: route.abort())
    tab.locator("#save-model").get_by_role("button", name="Save").click()
    expect(tab.locator("#toast")).to_contain_text("Nothing was sent.")
    expect(tab.locator("#lost")).to_contain_text("The server does not answer.")
    expect(tab.locator("#save-model [name=name]")).to_have_value("kept")
    tab.unroute_all()
    tab.locator("#save-model").get_by_role("button", name="Save").click()
    tab.wait_for_url("**/services/**")
    assert [one["name"] for one in Modelling(live).get("/modelstore")] == ["kept"]
    tab.goto(f"{places.RUNS}/{run}")
    tab.route("**/*", lambda route: route.abort())
    tab.get_by_role("button", name="Delete").click()
    tab.locator("#ask").get_by_role("button", name="Yes").click()
    expect(tab.locator("#lost")).to_be_visible()
    tab.unroute_all()
    tab.get_by_role("button", name="Delete").click()
    tab.locator("#ask").get_by_role("button", name="Yes").click()
    tab.wait_for_url(f"**{places.RUNS}")


@pytest.mark.parametrize("page", ["again", "builder"])
def test_a_long_form_keeps_its_text_while_the_server_is_away(live: Live, tab: Tab, page: str) -> None:
    from playwright.sync_api import expect

    run = finished(live)
    tab.goto(f"{places.RUNS}/{run}/again" if page == "again" else places.NEW_EXPERIMENT)
    form = tab.locator(f"#{page}")
    form.locator("[name=name]").fill("kept")
    settled(tab)
    tab.route("**/*", lambda route: route.abort())
    form.get_by_role("button", name="Run" if page == "again" else "Create and run").click()
    expect(tab.locator("#toast")).to_contain_text("Nothing was sent.")
    expect(form.locator("[name=name]")).to_have_value("kept")
    tab.unroute_all()
    form.get_by_role("button", name="Run" if page == "again" else "Create and run").click()
    if page == "again":
        tab.wait_for_url(lambda url: url.rpartition("/")[2] not in ("again", run))
    else:
        expect(tab.get_by_role("alert").first).to_be_visible()


def test_a_page_says_that_the_server_is_away_and_goes_on_when_it_is_back(live: Live, tab: Tab) -> None:
    from playwright.sync_api import expect

    tab.route(f"**{places.LIVE}*", lambda route: route.abort())
    tab.goto(places.RUNS)
    expect(tab.locator("#lost")).to_contain_text("does not answer")
    tab.unroute(f"**{places.LIVE}*")
    live.submitted()
    expect(tab.locator("tbody tr")).to_have_count(1)
    expect(tab.locator("#lost")).to_be_hidden()


def test_a_link_keeps_its_page_while_the_server_is_away(live: Live, tab: Tab) -> None:
    from playwright.sync_api import expect

    tab.goto(places.RUNS)
    tab.route("**/*", lambda route: route.abort())
    tab.fill("#find", "x")
    expect(tab.locator("#lost")).to_be_visible()
    link = tab.get_by_role("link", name="Services")
    link.click()
    expect(tab.locator("#toast .bad:not(#lost)").last).to_be_visible()
    expect(tab).to_have_url(re.compile(f"{places.RUNS}$"))
    tab.unroute("**/*")
    link.click()
    expect(tab).to_have_url(re.compile(f"{places.SERVICES}$"))


def test_the_dialog_of_a_deployment_is_that_of_the_last_click(live: Live, tab: Tab) -> None:
    from playwright.sync_api import expect

    for name in ("ada", "bob"):
        body = {"name": name, "exec": finished(live, name)}
        assert Modelling(live).call("POST", "/modelstore", body).status == 201
    tab.goto(places.SAVED)
    asked = Held(tab, f"**{places.SAVED}/deploy?*")
    for name in ("ada", "bob"):
        tab.locator("tr", has_text=name).get_by_role("button", name="Deploy").click()
        expect(tab.locator("#deploy .late")).to_have_text("Loading…")
        tab.keyboard.press("Escape")
    asked.wait(2)
    tab.locator("tr", has_text="bob").get_by_role("button", name="Deploy").click()
    asked.wait(3)
    asked.go(2)
    expect(tab.locator("#deploy-title")).to_have_text("Deploy version 1 of bob")
    asked.go(1, 0)
    settled(tab)
    expect(tab.locator("#deploy-title")).to_have_text("Deploy version 1 of bob")


def test_the_difference_is_that_of_the_last_click(live: Live, tab: Tab) -> None:
    from playwright.sync_api import expect

    runs = [live.submitted(files={"main.py": f"print({number})\n".encode()}) for number in range(3)]
    tab.goto(f"{places.RUNS}/compare?{'&'.join(f'id={run}' for run in runs)}")
    asked = Held(tab, "**/parts/diff?*")
    buttons = tab.locator("#code button")
    buttons.nth(0).click()
    asked.wait(1)
    buttons.nth(1).click()
    asked.wait(2)
    asked.go(1)
    expect(tab.locator("#diff")).to_contain_text("print(2)")
    asked.go(0)
    settled(tab)
    expect(tab.locator("#diff")).to_contain_text("print(2)")


def test_a_note_is_kept_while_the_star_is_on_its_way(live: Live, tab: Tab) -> None:
    from playwright.sync_api import expect

    run = live.submitted()
    tab.goto(f"{places.RUNS}/{run}")
    sent = Held(tab, "**/labels", "POST")
    tab.get_by_role("button", name="Favorite").click()
    sent.wait(1)
    tab.locator("#run-labels summary").click()
    tab.fill("[name=note]", "half a sentence")
    sent.go()
    tab.unroute_all()
    expect(tab.get_by_role("button", name="Favorite")).to_have_attribute("aria-pressed", "true")
    expect(tab.locator("[name=note]")).to_have_value("half a sentence")
    expect(tab.locator("[name=note]")).to_be_focused()
    tab.get_by_role("button", name="Save", exact=True).click()
    expect(tab.locator("#run-labels p.text")).to_have_text("half a sentence")


@pytest.mark.parametrize("place", [places.NEW_EXPERIMENT, places.DEFINITIONS])
def test_an_upload_of_code_shows_its_progress_and_can_be_canceled(
    live: Live, tab: Tab, tmp_path: Path, place: str
) -> None:
    from playwright.sync_api import expect

    (tmp_path / "train.py").write_text("print(1)\n")
    tab.goto(place)
    tab.set_input_files("[name=archive]", tmp_path / "train.py")
    sent = Held(tab, f"**{places.DEFINITIONS}", "POST")
    upload = tab.locator("button[form=upload], #upload button.main")
    upload.click()
    sent.wait(1)
    expect(tab.get_by_role("progressbar")).to_be_visible()
    expect(upload).to_be_disabled()
    tab.get_by_role("button", name="Cancel").click()
    expect(tab.locator("[data-said]")).to_have_text("Canceled. Nothing was stored.")
    expect(tab.get_by_role("progressbar")).to_be_hidden()
    tab.unroute_all()
    upload.click()
    added = tab.locator("[name$=-definition]") if place == places.NEW_EXPERIMENT else tab.locator("h1")
    expect(added).to_have_text("train") if place == places.DEFINITIONS else expect(added).to_have_value("alice/train")


def test_parts_say_that_they_load(live: Live, tab: Tab) -> None:
    from playwright.sync_api import expect

    run = finished(live)
    log = live.paths(run).capture("task12n-1", "stdout", False)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("one line\n")
    slots = Held(tab, f"**{places.RUNS}/{run}/slots?*")
    tab.goto(f"{places.RUNS}/{run}")
    slots.wait(1)
    loading = tab.locator("#chart-slots-of-run .late")
    expect(loading).to_contain_text("Loading…")
    expect(loading).to_have_css("animation-delay", "0.3s")
    expect(loading).to_have_css("visibility", "visible")
    slots.go()
    expect(tab.locator("#chart-slots-of-run")).not_to_contain_text("Loading…")
    search = Held(tab, "**/logs/search?*")
    tab.goto(f"{places.RUNS}/{run}/logs")
    tab.fill("[name=text]", "line")
    tab.press("[name=text]", "Enter")
    search.wait(1)
    expect(tab.locator("#log-found")).to_contain_text("Searching…")
    search.lose()
    expect(tab.locator("#log-found")).to_contain_text("The server does not answer.")
    tab.press("[name=text]", "Enter")
    expect(tab.locator("#log-found")).to_contain_text("1 line found")
