"""The files of a run in a real browser: the list keeps its place, and nothing that a program wrote runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from furnished import write_files
from live_server import Live

from dlicmd.contract.states import FINISHED
from local_backend.console import places

if TYPE_CHECKING:
    from playwright.sync_api import Page as Tab

pytestmark = pytest.mark.integration

HOSTILE = (b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9" onload="parent.hacked = 1">'
           b"<script>parent.hacked = 1</script></svg>")


def write_file(live: Live, run: str, name: str, content: bytes) -> None:
    path = live.paths(run).root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


@pytest.fixture
def run(live: Live) -> str:
    run = live.submitted("--exec-start PyTorch --model-main main.py")
    live.run_on(run, "cpu-0")
    live.move(run, FINISHED)
    write_files(live, run)
    for number in range(60):
        (live.paths(run).root / f"part-{number}.txt").write_text(f"content {number}")
    return run


def test_a_file_is_shown_beside_the_list_which_keeps_its_place(live: Live, run: str, tab: Tab) -> None:
    from playwright.sync_api import expect

    tab.goto(f"{places.RUNS}/{run}/results")
    files, title, chosen = tab.locator(".files"), tab.locator("#file h2"), tab.locator(".files [aria-current]")
    link = files.get_by_role("link", name="part-50.txt")
    link.scroll_into_view_if_needed()
    at = files.evaluate("list => list.scrollTop")
    assert at > 0
    link.focus()
    tab.keyboard.press("Enter")
    expect(title).to_have_text("part-50.txt")
    expect(tab.locator("#file pre")).to_have_text("content 50")
    assert files.evaluate("list => list.scrollTop") == at
    expect(link).to_be_focused()
    expect(chosen).to_have_text(["part-50.txt"])
    files.get_by_role("link", name="part-51.txt").click()
    expect(title).to_have_text("part-51.txt")
    expect(chosen).to_have_text(["part-51.txt"])
    assert tab.url.endswith("/results?file=part-51.txt")
    tab.go_back()
    expect(title).to_have_text("part-50.txt")
    expect(chosen).to_have_text(["part-50.txt"])
    (live.paths(run).root / "part-52.txt").unlink()
    files.get_by_role("link", name="part-52.txt").click()
    expect(tab.locator("#file")).to_contain_text("has written no file 'part-52.txt'")


def test_a_running_run_is_followed_without_losing_the_place(live: Live, run: str, tab: Tab) -> None:
    from playwright.sync_api import expect

    running = live.submitted("--exec-start PyTorch --model-main main.py")
    live.run_on(running, "cpu-0")
    for number in range(60):
        write_file(live, running, f"parts/{number}.csv", b"a,b\n" + b"1,2\n" * 150)
    tab.goto(f"{places.RUNS}/{running}/results")
    tab.get_by_role("link", name="parts/").click()
    files = tab.locator(".files")
    files.get_by_role("link", name="55.csv").click()
    expect(tab.locator("#file")).to_contain_text("Rows 1 to 100")
    tab.get_by_role("link", name="Next 100 rows").click()
    expect(tab.locator("#file")).to_contain_text("Rows 101 to 150")
    at = files.evaluate("list => list.scrollTop")
    assert at > 0
    write_file(live, running, "parts/999.csv", b"new")
    live.say(running, {"step": 1})
    expect(files.get_by_role("link", name="999.csv")).to_be_attached()
    assert files.evaluate("list => list.scrollTop") == at
    expect(files.locator("[aria-current]")).to_have_text(["55.csv"])
    expect(tab.locator("#file")).to_contain_text("Rows 101 to 150")


def test_a_picture_that_cannot_be_drawn_is_said(live: Live, run: str, tab: Tab) -> None:
    from playwright.sync_api import expect

    write_file(live, run, "plots/cut.png", b"\x89PNG\r\n\x1a\n" + bytes(50))
    for address in ("?file=plots/cut.png", "?folder=plots"):
        tab.goto(f"{places.RUNS}/{run}/results{address}")
        expect(tab.locator("#file")).to_contain_text("The browser cannot draw this picture")
        expect(tab.locator("#file img[src*='cut.png']")).to_have_count(0)


def test_pictures_and_histograms_are_drawn(run: str, tab: Tab) -> None:
    from playwright.sync_api import expect

    tab.goto(f"{places.RUNS}/{run}/results")
    steps = tab.locator(".steps img")
    expect(steps).to_have_count(3)
    tab.wait_for_function("() => [...document.querySelectorAll('#file img')].every((one) => one.naturalWidth === 8)")
    tab.locator(".chart").scroll_into_view_if_needed()
    expect(tab.locator(".chart canvas")).to_be_visible()


def test_no_script_of_a_picture_runs(live: Live, run: str, tab: Tab) -> None:
    (live.paths(run).root / "hostile.svg").write_bytes(HOSTILE)
    tab.goto(f"{places.RUNS}/{run}/results?file=hostile.svg")
    tab.wait_for_function("() => document.querySelector('#file img').naturalWidth === 9")
    assert tab.evaluate("typeof hacked") == "undefined"
    # The address itself is no document, but a file to save.
    with tab.expect_download() as saved:
        tab.evaluate("() => { location = document.querySelector('#file img').src; }")
    assert saved.value.suggested_filename
