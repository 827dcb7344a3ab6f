"""The page of a run in a real browser: curves grow and zoom, logs follow their end, and a search leads to its line."""

from __future__ import annotations

import io
import math
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from live_server import TOKEN, Live
from modelling import Modelling
from support import PATIENCE

from dlicmd.contract.states import FINISHED, PENDING, RUNNING
from local_backend.api.guard import SESSION
from local_backend.console import places
from local_backend.curves.book import Book
from local_backend.curves.file import CurveFile
from local_backend.curves.model import MetricValue

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from playwright.sync_api import Page as Tab

pytestmark = pytest.mark.integration

CHART = "#chart-loss"
EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture
def tab(live: Live, browser: Browser) -> Iterator[Tab]:
    """A tab that is logged on. The test fails if a page reports an error."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(PATIENCE * 1000)
    base = f"http://127.0.0.1:{live.port}"
    context.add_cookies([{"name": SESSION, "value": TOKEN, "url": base}])
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda problem: problems.append(str(problem)))
    page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    yield page
    context.close()
    assert problems == []


def curves(live: Live, run: str, count: int) -> None:
    book = Book()
    for step in range(1, count + 1):
        for name in ("loss", "val/loss"):
            book.add("dlicmd.log", MetricValue(name, 1 / step, float(step), "step", 1.7e9 + step))
    live.paths(run).state.mkdir(parents=True, exist_ok=True)
    CurveFile(live.paths(run).curves, book, 0.0)


def test_curves_grow_and_zoom_and_logs_follow(live: Live, tab: Tab) -> None:
    from playwright.sync_api import expect

    run = live.submitted(f"--exec-start PyTorch --model-main main.py '--appName={EVIL}'")
    live.run_on(run, "cpu-0")
    curves(live, run, 40)
    log = live.paths(run).capture("task12n-1", "stdout", False)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("".join(f"\x1b[31mline {number}\x1b[0m {EVIL}\n" for number in range(5000)))
    base = f"http://127.0.0.1:{live.port}{places.RUNS}/{run}"

    tab.goto(base)
    tab.wait_for_selector(f"{CHART} canvas")
    assert tab.inner_text("h1") == EVIL
    height = tab.evaluate(f"() => document.querySelector('{CHART}').offsetHeight")
    tab.click(f"{CHART} summary")
    newest = tab.locator(f"{CHART} .scroll tbody tr:last-child td").first
    expect(newest).to_have_text("40")
    curves(live, run, 90)
    expect(newest).to_have_text("90")
    tab.click(f"{CHART} summary")
    assert tab.evaluate(f"() => document.querySelector('{CHART}').offsetHeight") == height

    box = tab.locator(f"{CHART} .u-over").bounding_box()
    assert box is not None
    with tab.expect_response(lambda answer: "from=" in answer.url):
        tab.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 20)
        tab.mouse.down()
        tab.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 20, steps=4)
        tab.mouse.up()
    with tab.expect_response(lambda answer: "/curves" in answer.url and "from=" not in answer.url):
        tab.mouse.dblclick(box["x"] + 50, box["y"] + 20)
    tab.focus(f"{CHART} .plot")
    tab.keyboard.press("Home")
    assert "loss 1" in tab.inner_text(f"{CHART} [aria-live]")
    _change_axes(tab)
    _smooth(tab)

    _look_at_logs(tab, base, log)


def _change_axes(tab: Tab) -> None:
    """Choose other axes with the keyboard. The next page has them, too: the logarithmic one for this metric alone."""
    from playwright.sync_api import expect

    across, log = tab.get_by_label("Horizontal axis"), tab.locator(CHART).get_by_role("button", name="Log scale")
    head = tab.locator(f"{CHART} .u-legend th").first
    with tab.expect_response(lambda answer: "axis=elapsed" in answer.url):
        across.select_option("elapsed")
    expect(head).to_have_text("seconds since the start")
    with tab.expect_response(lambda answer: "axis=time" in answer.url):
        across.select_option("time")
    expect(head).to_have_text("time")
    log.press("Enter")
    with tab.expect_response(lambda answer: "axis=time" in answer.url):
        tab.reload()
    expect(across).to_have_value("time")
    expect(log).to_have_attribute("aria-pressed", "true")
    assert tab.get_by_role("button", name="Log scale", pressed=True).count() == 1, "of another metric"
    log.press("Enter")
    across.select_option("step")
    expect(head).to_have_text("step")


def _smooth(tab: Tab) -> None:
    """Choose moving averages with the keyboard: the chart has them, the table keeps the recorded values, and the next
    page has the choice."""
    from playwright.sync_api import expect

    def last() -> tuple[str, str]:
        tab.locator(f"{CHART} .plot").press("End")
        return tab.inner_text(f"{CHART} [aria-live]"), tab.inner_text(f"{CHART} .scroll tbody tr:last-child")

    smooth = tab.get_by_role("slider", name="Smooth")
    tab.click(f"{CHART} summary")
    recorded, row = last()
    smooth.press("End")
    average, same = last()
    assert average != recorded and same == row
    with tab.expect_response(lambda answer: "/curves" in answer.url):
        tab.reload()
    expect(smooth).to_have_value("0.99")
    expect(tab.locator(f"{CHART} .u-legend")).to_be_visible()
    tab.click(f"{CHART} summary")
    assert last() == (average, row)
    smooth.press("Home")
    assert last() == (recorded, row)
    tab.click(f"{CHART} summary")


def _look_at_logs(tab: Tab, base: str, log: Path) -> None:
    from playwright.sync_api import expect

    tab.goto(f"{base}/logs")
    newest = tab.locator("#log > div").last
    expect(newest).to_have_text(f"line 4999 {EVIL}")
    with log.open("a") as file:
        file.write("a new line\n")
    expect(newest).to_have_text("a new line")
    assert tab.evaluate("() => { const box = document.getElementById('log');"
                        " return box.scrollHeight - box.scrollTop - box.clientHeight < 8; }")
    tab.fill("#log-search input", "LINE 123 ")
    tab.keyboard.press("Enter")
    tab.wait_for_selector("#log-found .logs button")
    tab.click("#log-found .logs button")
    expect(tab.locator("#log > div").first).to_have_attribute("data-at", "0")
    assert tab.locator("#log img").count() == 0
    tab.click("#log-last")
    expect(newest).to_have_text("a new line")


def test_compared_runs_are_chosen_by_ranges_of_their_parameters(live: Live, tab: Tab) -> None:
    from playwright.sync_api import expect

    runs = [live.submitted(f"--exec-start PyTorch --model-main main.py -- --lr {rate}") for rate in (0.1, 0.2, 0.3)]
    for run, count in zip(runs, (1, 4, 2), strict=True):
        curves(live, run, count)
    tab.goto(f"http://127.0.0.1:{live.port}{places.RUNS}/compare?{'&'.join(f'id={run}' for run in runs)}&by=loss")
    tab.locator("#parallel").scroll_into_view_if_needed()
    axis = tab.get_by_role("slider", name="Range of --lr")
    names = tab.locator("#parallel tbody a")
    expect(names).to_have_text([f"SingleNodePytorchTrain ({run})" for run in (runs[1], runs[2], runs[0])])
    tab.get_by_role("button", name="Log scale: loss").click()
    assert axis.get_attribute("aria-pressed") is None, "an axis is no button"
    axis.press("Shift+ArrowUp")
    expect(names).to_have_text([f"SingleNodePytorchTrain ({run})" for run in (runs[1], runs[2])])
    points = tab.locator("#parallel circle")
    expect(points).to_have_count(3)
    expect(tab.locator("#parallel circle.out")).to_have_count(1)
    # The rate grows to the right. Of the losses 1, 1/4 and 1/2, the largest is at the top.
    across = {title: (float(x), float(y)) for title, x, y in points.evaluate_all(
        "(all) => all.map((one) => [one.textContent, one.getAttribute('cx'), one.getAttribute('cy')])")}
    assert [text.split("--lr ")[1] for text in sorted(across, key=lambda text: across[text][0])] == [
        "0.1, best loss 1", "0.2, best loss 0.25", "0.3, best loss 0.5"]
    assert sorted(across, key=lambda text: across[text][1])[0].endswith("loss 1")
    tab.get_by_label("Parameter of the points").select_option("--lr")
    names.first.click()
    tab.wait_for_url(f"**{places.RUNS}/{runs[1]}")


def test_pointing_at_a_chart_shows_the_values_of_all(live: Live, tab: Tab) -> None:
    from playwright.sync_api import expect

    run = live.submitted()
    book = Book()
    for step in range(5):
        for name in ("loss", "accuracy"):
            book.add("dlicmd.log", MetricValue(name, step / 8, float(step), "step", 1.7e9 + step))
    book.add("dlicmd.log", MetricValue("loss", math.nan, 5.0, "step", 1.7e9))
    live.paths(run).state.mkdir(parents=True, exist_ok=True)
    CurveFile(live.paths(run).curves, book, 0.0)
    tab.goto(f"http://127.0.0.1:{live.port}{places.RUNS}/{run}")
    place = tab.locator(f"{CHART} .u-over").bounding_box()
    expect(tab.locator("#chart-accuracy .u-legend")).to_be_visible()
    assert place
    tab.mouse.move(place["x"] + place["width"] / 2 + 5, place["y"] + 20)
    tab.mouse.move(place["x"] + place["width"] / 2, place["y"] + 20)
    for chart in (CHART, "#chart-accuracy"):
        expect(tab.locator(f"{chart} .u-legend .u-value")).to_have_text(["2", "0.25"])
    expect(tab.locator(f"{CHART} summary")).to_contain_text("not finite and not drawn: 1")
    expect(tab.locator("#chart-accuracy summary")).not_to_contain_text("finite")


def test_long_names_fit_into_the_legend_of_a_phone(live: Live, tab: Tab) -> None:
    names = [f"{letter * 90}-{'tuned' * 10}" for letter in "ab"]
    runs = [live.submitted(f"--exec-start PyTorch --model-main main.py --appName={name}") for name in names]
    for run in runs:
        curves(live, run, 20)
    tab.set_viewport_size({"width": 390, "height": 844})
    tab.goto(f"http://127.0.0.1:{live.port}{places.RUNS}/compare?{'&'.join(f'id={run}' for run in runs)}")
    tab.locator(".chart .u-legend th").nth(1).wait_for()
    titles = tab.evaluate("[...document.querySelectorAll('.chart .u-legend th')].map((one) => one.title)")
    assert all(any(name in title for title in titles) for name in names)
    assert tab.evaluate("[...document.querySelectorAll('.chart .u-legend')].every("
                        "(one) => one.scrollWidth <= one.clientWidth)")
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    shown = tab.locator(".chart .u-legend .u-label").nth(1).bounding_box()
    assert shown is not None and shown["width"] > 100, "the begin of the name is readable"


def test_the_form_of_a_deployment_follows_its_choices(live: Live, tab: Tab) -> None:
    from playwright.sync_api import expect

    state = io.BytesIO()
    with zipfile.ZipFile(state, "w") as archive:
        archive.writestr("net/data.pkl", pickle.dumps(OrderedDict(), 2))
    network = b"from torch import nn\n\n\nclass Net(nn.Module):\n    pass\n"
    run = live.submitted(files={"main.py": b"print(1)\n", "network.py": network})
    live.paths(run).model.mkdir(parents=True, exist_ok=True)
    for name in ("a.pth", "b.pth"):
        (live.paths(run).model / name).write_bytes(state.getvalue())
    live.move(run, PENDING, RUNNING, FINISHED)
    assert Modelling(live).call("POST", "/modelstore", {"name": "net", "exec": run}).status == 201
    tab.goto(f"http://127.0.0.1:{live.port}{places.SAVED}")
    tab.get_by_role("button", name="Deploy", exact=True).click()
    send = tab.locator("#deploy button.main")
    expect(send).to_be_disabled()
    tab.get_by_label("Model weights").select_option("model/b.pth")
    expect(send).to_be_enabled()
    expect(tab.locator("#deploy")).to_contain_text("the class network:Net")
    send.click()
    tab.wait_for_url("**/services/net")
