"""The pages in a real browser: accessibility, widths, keys, motion, live parts, and bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from furnished import RESULTS, furnish, linked_pages
from live_server import Live, settings_for
from searching import searching
from support import PATIENCE
from visitor import entered, link

from dlicmd.contract.states import PENDING
from local_backend.api.guard import SESSION
from local_backend.console import places
from local_backend.console.site import Console

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext
    from playwright.sync_api import Page as Tab

pytestmark = pytest.mark.integration

SLOW = 50_000  # bytes per second
WIDE, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
#: Elements that a keyboard must reach. Of a group of radio buttons, it reaches one.
REACHED = """() => {
  const all = document.querySelectorAll(
    'a[href],button,input:not([type=hidden]),select,textarea,summary,[tabindex="0"]');
  const groups = new Set();
  globalThis.expected = [...all].filter((one) => {
    if (one.disabled || !one.checkVisibility({visibilityProperty: true})) return false;
    if (one.closest('dialog:not([open])')) return false;
    if (one.type === 'radio') { if (groups.has(one.name)) return false; groups.add(one.name); }
    return one.tabIndex >= 0;
  });
  return expected.map((one) => one.outerHTML.slice(0, 120));
}"""
FOCUSED = """() => {
  const one = document.activeElement, style = getComputedStyle(one);
  const radio = one.type === 'radio' ? document.querySelector(`input[type=radio][name="${one.name}"]`) : one;
  return [expected.indexOf(radio), style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1];
}"""
MOVING = """() => [...document.querySelectorAll('*')].filter((one) => {
  const style = getComputedStyle(one);
  return [style.transitionDuration, style.animationDuration].join().split(',').some((text) => parseFloat(text) > 0.01)
    || style.scrollBehavior === 'smooth';
}).map((one) => one.outerHTML.slice(0, 100))"""
SHIFTS = """() => new Promise((resolve) => {
  const seen = [];
  new PerformanceObserver((list) => seen.push(...list.getEntries())).observe({type: 'layout-shift', buffered: true});
  requestAnimationFrame(() => setTimeout(() => resolve(seen.reduce((sum, one) => sum + one.value, 0)), 0));
})"""
QUIET = """() => !document.querySelector('.htmx-request') && [...document.querySelectorAll('[data-chart]')].every(
  (one) => one.getBoundingClientRect().top > innerHeight || one.children.length)"""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server with something on every page."""
    live = Live(settings_for(tmp_path_factory.mktemp("house") / "home"), pages=Console())
    with searching(live):
        furnish(live)
        yield live
    live.close()


@pytest.fixture(scope="module")
def pages(house: Live) -> list[str]:
    """Paths of pages, one of each kind."""
    found = linked_pages(house)
    results = next(path for path in found if path.endswith("/results"))
    run = results.split("/")[-2]
    compared = next(path for path in found if path.startswith(f"{places.RUNS}/compare?"))
    return [*found, f"{places.RUNS}?charts=1", f"{compared}&group=param.batch-size",
            f"{results}?folder=plots", f"{places.NEW_SEARCH}?run={run}",
            *(f"{results}?file={name}" for name in RESULTS)]


def logged_on(browser: Browser, live: Live, **more: Any) -> BrowserContext:
    """Return a new context of the browser, logged on as the owner of the server."""
    context = browser.new_context(base_url=f"http://127.0.0.1:{live.port}", viewport=WIDE, **more)
    context.set_default_timeout(PATIENCE * 1000)
    context.add_cookies([{"name": SESSION, "value": entered(live).session, "url": f"http://127.0.0.1:{live.port}"}])
    return context


@pytest.fixture(scope="module")
def tab(browser: Browser, house: Live) -> Iterator[Tab]:
    """A tab that fails the test at an error of a script or of the content security policy."""
    with closing(logged_on(browser, house)) as context:
        yield context.new_page()


@pytest.fixture(autouse=True)
def problems(tab: Tab) -> Iterator[list[str]]:
    """What the browser reports."""
    found: list[str] = []

    def said(message: Any) -> None:
        if message.type in ("error", "warning") and not tab.url.endswith("/none"):
            found.append(f"{tab.url}: {message.text}")

    def broke(problem: Any) -> None:
        found.append(f"{tab.url}: {problem}")

    tab.on("console", said)
    tab.on("pageerror", broke)
    yield found
    tab.remove_listener("console", said)
    tab.remove_listener("pageerror", broke)
    assert not found


def opened(tab: Tab, path: str) -> None:
    """Open a page, and wait until its parts and the charts in view are there."""
    tab.goto(path)
    tab.wait_for_function(QUIET)


def violations(tab: Tab, options: dict[str, Any]) -> list[str]:
    """Return what axe finds. A page gets its script once."""
    from axe_playwright_python.sync_playwright import Axe

    if not tab.evaluate("() => 'axe' in globalThis"):
        tab.evaluate(Axe().axe_script)
    options = options | {"resultTypes": ["violations"]}
    found = tab.evaluate("async (options) => (await axe.run(options)).violations", options)
    return [f"{one['id']}: {node['html'][:200]}" for one in found for node in one["nodes"]]


def test_pages_are_accessible_and_fit(tab: Tab, pages: list[str]) -> None:
    everything, colors = {"runOnly": {"type": "tag", "values": TAGS}}, {"runOnly": ["color-contrast"]}
    wrong = []
    for path in [*pages, places.LOGON, f"{places.HOME}/none"]:
        tab.set_viewport_size(WIDE)
        tab.emulate_media(color_scheme="light")
        opened(tab, path)
        for scheme, size, options in (("light", WIDE, everything), ("dark", WIDE, colors), ("dark", PHONE, everything)):
            tab.set_viewport_size(size)
            tab.emulate_media(color_scheme=scheme)
            tab.wait_for_function("(theme) => document.documentElement.dataset.theme === theme", arg=scheme)
            about = f"{path} {scheme} {size['width']}"
            wrong += [f"{about}: {one}" for one in violations(tab, options)]
            if tab.evaluate("document.documentElement.scrollWidth > innerWidth"):
                wrong.append(f"{about}: is wider than the window")
    assert not wrong, "\n".join(wrong)


def test_pages_do_not_move_and_a_keyboard_reaches_everything(tab: Tab, pages: list[str]) -> None:
    tab.set_viewport_size(WIDE)
    wrong = []
    for path in [*pages, places.LOGON]:
        opened(tab, path)
        wrong += [f"{path}: {one}" for one in [*moving(tab), *out_of_reach(tab)]]
    assert not wrong, "\n".join(wrong)


def test_parts_of_a_page_do_not_move_while_it_loads(browser: Browser, house: Live, pages: list[str]) -> None:
    wrong = []
    with closing(logged_on(browser, house)) as context:
        tab = context.new_page()
        tab.clock.set_fixed_time(datetime.now(tz=UTC))  # else a time can tick: 1 second ago, 2 seconds ago
        slow(context, tab)
        for path in [*pages, places.LOGON]:
            opened(tab, path)
            found = tab.evaluate(SHIFTS)
            wrong += [f"{path}: shifts by {found}"] if found > 0.001 else []
    assert not wrong, "\n".join(wrong)


def slow(context: BrowserContext, tab: Tab) -> None:
    """Let pages arrive in pieces: the browser then can draw a part of a page."""
    session = context.new_cdp_session(tab)
    session.send("Network.enable")
    session.send("Network.emulateNetworkConditions",
                 {"offline": False, "latency": 0, "downloadThroughput": SLOW, "uploadThroughput": SLOW})


def moving(tab: Tab) -> list[str]:
    """Return what moves although the user does not want it."""
    tab.emulate_media(reduced_motion="reduce")
    found = tab.evaluate(MOVING)
    tab.emulate_media(reduced_motion="no-preference")
    return [f"moves: {one}" for one in found]


def out_of_reach(tab: Tab) -> list[str]:
    """Return what a keyboard does not reach, or reaches without an outline."""
    wrong = []
    tab.evaluate("document.activeElement.blur()")
    expected = tab.evaluate(REACHED)
    reached: set[int] = set()
    for _ in range(len(expected) + 5):
        tab.keyboard.press("Tab")
        number, outlined = tab.evaluate(FOCUSED)
        if number in reached:
            break
        if number >= 0:
            reached.add(number)
            if not outlined:
                wrong.append(f"no outline: {expected[number]}")
    return [*wrong, *(f"not reached: {one}" for number, one in enumerate(expected) if number not in reached)]


def test_columns_are_chosen_with_the_keyboard(tab: Tab) -> None:
    from playwright.sync_api import expect

    opened(tab, places.RUNS)
    tab.focus("[data-dialog=columns]")
    tab.keyboard.press("Enter")
    names = tab.locator("#columns-list input")
    expect(tab.locator("#columns [name=name]")).to_be_focused()
    expect(names.first).to_be_checked()
    for scheme, size in (("light", WIDE), ("dark", WIDE), ("dark", PHONE)):
        tab.set_viewport_size(size)
        tab.emulate_media(color_scheme=scheme)
        tab.wait_for_function("(theme) => document.documentElement.dataset.theme === theme", arg=scheme)
        assert violations(tab, {"runOnly": {"type": "tag", "values": TAGS}}) == []
    tab.set_viewport_size(WIDE)
    tab.emulate_media(color_scheme="light")
    tab.keyboard.type("batch")
    wanted = tab.locator("#columns-list [value='param.batch-size']")
    expect(names).to_have_count(3)
    while not wanted.evaluate("(one) => one === document.activeElement"):
        tab.keyboard.press("Tab")
    tab.keyboard.press("Space")
    tab.keyboard.press("Tab")
    tab.keyboard.press("Enter")
    tab.wait_for_url("**/runs?column=metric.loss&column=metric.accuracy&column=param.batch-size")
    expect(tab.locator("th.value")).to_have_count(3)
    expect(tab.locator("td.value").last).to_have_text("1")
    tab.goto(places.RUNS)
    expect(tab.locator("th.value").last).to_have_text("param.batch-size")
    tab.click("[data-dialog=columns]")
    tab.click("#columns [value=default]")
    tab.wait_for_url(f"**{places.RUNS}")
    expect(tab.locator("th.value")).to_have_text(["Loss", "Accuracy"])


def test_views_are_saved_opened_and_deleted_with_the_keyboard(tab: Tab) -> None:
    from playwright.sync_api import expect

    opened(tab, f"{places.RUNS}?find=digits&state=finished")
    tab.focus("[data-dialog=views]")
    tab.keyboard.press("Enter")
    expect(tab.locator("#views [name=name]")).to_be_focused()
    tab.keyboard.type("good ones")
    tab.keyboard.press("Enter")
    view = tab.locator("#views li a")
    expect(view).to_have_text("good ones")
    expect(view).to_have_attribute("aria-current", "true")
    for scheme, size in (("light", WIDE), ("dark", WIDE), ("dark", PHONE)):
        tab.set_viewport_size(size)
        tab.emulate_media(color_scheme=scheme)
        tab.wait_for_function("(theme) => document.documentElement.dataset.theme === theme", arg=scheme)
        assert violations(tab, {"runOnly": {"type": "tag", "values": TAGS}}) == []
    tab.set_viewport_size(WIDE)
    tab.emulate_media(color_scheme="light")
    tab.goto(places.RUNS)
    tab.click("[data-dialog=views]")
    view.click()
    tab.wait_for_url("**/runs?find=digits&state=finished")
    tab.click("[data-dialog=views]")
    tab.focus("#views li button")
    tab.keyboard.press("Enter")
    tab.click("#ask [value=yes]")
    expect(view).to_have_count(0)
    expect(tab.locator("#views")).to_contain_text("No views yet")


def test_the_answer_of_a_model_is_in_view(tab: Tab) -> None:
    from playwright.sync_api import expect

    tab.set_viewport_size(WIDE)
    opened(tab, f"{places.SERVICES}/ping")
    tab.route("**/try", lambda route: route.fulfill(content_type="text/html", body="<p id='said'>0.97</p>"))
    send = tab.get_by_role("button", name="Send")
    send.evaluate("(button) => button.scrollIntoView({block: 'end'})")
    send.dispatch_event("click")
    expect(tab.locator("#said")).to_be_in_viewport()
    tab.unroute("**/try")


def test_times_are_local(browser: Browser, house: Live) -> None:
    with closing(logged_on(browser, house, timezone_id="Asia/Kolkata", locale="en-US")) as context:
        page = context.new_page()
        page.goto(places.ADMIN_AUDIT)
        shown, title = page.locator("td time").first.evaluate("(one) => [one.textContent, one.title]")
    assert re.search(r":[0-5]\d:[0-5]\d.[AP]M$", shown) and "server: " in title


def test_keys_open_sections_and_the_list_of_keys(tab: Tab) -> None:
    opened(tab, places.HOME)
    for section in reversed(places.SECTIONS):
        tab.keyboard.press("g")
        tab.keyboard.press(section.key)
        tab.wait_for_selector(f".nav a[data-key={section.key}][aria-current]")
        tab.wait_for_load_state()
    tab.keyboard.press("?")
    tab.wait_for_selector("#keys[open]")
    tab.keyboard.press("Escape")
    tab.wait_for_selector("#keys", state="hidden")


def test_the_theme_is_chosen_and_kept(tab: Tab) -> None:
    tab.emulate_media(color_scheme="light")
    opened(tab, places.HOME)
    tab.click("[data-theme-toggle]")
    assert tab.evaluate("document.documentElement.dataset.theme") == "dark"
    opened(tab, places.DESIGN)
    assert tab.evaluate("document.documentElement.dataset.theme") == "dark"
    tab.evaluate("localStorage.clear()")


def test_a_first_load_is_small(browser: Browser, house: Live) -> None:
    for section in places.SECTIONS:
        with closing(logged_on(browser, house)) as context:
            tab = context.new_page()
            network = context.new_cdp_session(tab)
            network.send("Network.enable")
            received: list[int] = []
            network.on("Network.loadingFinished", lambda one, to=received: to.append(one["encodedDataLength"]))
            opened(tab, section.path)
            tab.wait_for_load_state()
            assert len(received) >= 4 and sum(received) <= 150_000, (section.path, sum(received))


def test_a_link_logs_a_browser_on(browser: Browser, house: Live) -> None:
    with closing(browser.new_context(base_url=f"http://127.0.0.1:{house.port}")) as context:
        tab = context.new_page()
        tab.goto(link(house))
        tab.wait_for_url(f"**{places.HOME}")
        assert tab.locator("h1").inner_text() == "Overview"
        assert tab.evaluate("document.cookie") == ""


def test_a_hidden_tab_holds_no_stream(tab: Tab, house: Live) -> None:
    def of_stream(request: Any) -> bool:
        return places.LIVE in str(request.url)

    def show(state: str) -> None:
        tab.evaluate("""(state) => {
            Object.defineProperty(document, 'hidden', {configurable: true, value: state === 'hidden'});
            Object.defineProperty(document, 'visibilityState', {configurable: true, value: state});
            document.dispatchEvent(new Event('visibilitychange'));
        }""", state)

    with tab.expect_response(of_stream):
        opened(tab, places.HOME)
    with tab.expect_event("requestfailed", of_stream):
        show("hidden")
    with tab.expect_response(of_stream):
        show("visible")
    run = house.submitted("--exec-start PyTorch --model-main main.py --appName seen-live")
    house.move(run, PENDING)
    tab.get_by_text("seen-live").first.wait_for()
    house.forget(run)
