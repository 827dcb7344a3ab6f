"""The experiment builder in a real browser: a newcomer uploads a folder, creates and runs an experiment, and sees it
run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from live_server import Live

from dlicmd.contract.states import FINISHED
from local_backend.console import places
from local_backend.store import execs

if TYPE_CHECKING:
    from playwright.sync_api import Page as Tab
    from playwright.sync_api import Route

pytestmark = pytest.mark.integration

SAMPLE = Path(__file__).parents[2] / "samples" / "digits"


def test_a_newcomer_uploads_a_folder_and_sees_it_run(live: Live, tab: Tab) -> None:
    from playwright.sync_api import expect

    tab.goto(f"http://127.0.0.1:{live.port}{places.EXPERIMENTS}")
    tab.get_by_role("link", name="New experiment").first.click()
    tab.fill("#name", "first")
    tab.press("#name", "Tab")
    tab.keyboard.type("typed while the server checks the name")
    expect(tab.locator("#description")).to_be_focused()

    tab.set_input_files("[name=folder]", SAMPLE)
    expect(tab.locator("[name=new-name]")).to_have_value("digits")
    tab.select_option("[name=new-framework]", "edtPyTorch")
    tab.fill("[name=new-command]", "none.py")
    tab.get_by_role("button", name="Upload and add").click()
    expect(tab.locator("[data-said]")).to_contain_text("none.py")
    tab.fill("[name=new-command]", "train.py --epochs 3")
    tab.get_by_role("button", name="Upload and add").click()
    expect(tab.locator("[name$=-definition]")).to_have_value("alice/digits")
    expect(tab.locator("#description")).to_have_value("typed while the server checks the name")

    tab.get_by_role("button", name="Add data").click()
    tab.fill("#data-1-path", str(SAMPLE / "data"))
    tab.press("#data-1-path", "Tab")
    least, most = tab.locator("[name$=-least]"), tab.locator("[name$=-count]")
    most.fill("two")
    most.press("Tab")
    expect(most).to_have_attribute("aria-invalid", "true")
    most.fill("2")
    most.press("Tab")
    summary = tab.locator("section[aria-labelledby=summary-title]")
    expect(summary).to_contain_text("alice/digits: elastic, 1 to 2 slots, PyTorch")
    tab.select_option("[name$=-nodes]", "single")
    expect(least).to_be_hidden()
    tab.select_option("[name$=-nodes]", "elastic")
    expect(least).to_be_visible()

    tab.get_by_role("button", name="Create and run").click()
    expect(tab.get_by_role("heading", name="first")).to_be_visible()
    state = tab.locator("#runs .state")
    expect(state).to_have_text("submitted")
    [exec_id] = live.database.read(execs.all_ids)
    live.run_on(exec_id, "cpu-0", "cpu-1")
    expect(state).to_have_text("running")
    live.move(exec_id, FINISHED)
    expect(state).to_have_text("finished")
    row = live.row(exec_id)
    assert row.framework == "edtPyTorch" and row.workload.data.data_dir == str(SAMPLE / "data")
    tab.get_by_role("link", name="Edit").click()
    expect(tab.locator("#data-1-path")).to_have_value(str(SAMPLE / "data"))


def begun(live: Live, tab: Tab) -> None:
    """Open the builder and choose code to upload."""
    tab.goto(f"http://127.0.0.1:{live.port}{places.NEW_EXPERIMENT}")
    tab.set_input_files("[name=folder]", SAMPLE)
    tab.fill("[name=new-command]", "train.py --epochs 3")


def held(tab: Tab, place: str) -> list[Route]:
    """Hold the requests of a page to a place, and return the list that gets them."""
    found: list[Route] = []

    def keep(route: Route) -> None:
        found.append(route)

    tab.route(f"**{place}", keep)
    return found


def test_a_button_is_not_moved_while_it_is_pressed(live: Live, tab: Tab) -> None:
    from playwright.sync_api import expect

    tab.goto(f"http://127.0.0.1:{live.port}{places.NEW_EXPERIMENT}")
    tab.fill("#name", "a b")
    tab.press("#name", "Tab")
    expect(tab.locator("#name")).to_have_attribute("aria-invalid", "true")
    tab.fill("#name", "good")
    checks: list[str] = []
    tab.on("request", lambda one: checks.append(one.url) if one.url.endswith(places.EXPERIMENT_FORM) else None)
    tab.get_by_role("button", name="Add data").hover()
    tab.mouse.down()
    expect(tab.locator("#name")).not_to_be_focused()
    tab.evaluate("fetch(location.href).then((answer) => answer.text())")
    assert checks == [], "the check of the name waits for the end of the press"
    tab.mouse.up()
    expect(tab.locator("#data-1-path")).to_be_visible()
    expect(tab.locator("#name")).not_to_have_attribute("aria-invalid", "true")
    assert checks


def test_no_answer_takes_back_a_row_that_was_added_after_its_question(live: Live, tab: Tab) -> None:
    from playwright.sync_api import expect

    tab.goto(f"http://127.0.0.1:{live.port}{places.NEW_EXPERIMENT}")
    asked = held(tab, places.EXPERIMENT_FORM)
    tab.fill("#name", "first")
    with tab.expect_request(f"**{places.EXPERIMENT_FORM}"):
        tab.press("#name", "Tab")
    with tab.expect_request(f"**{places.EXPERIMENT_FORM}"):
        tab.get_by_role("button", name="Add data").click()
    tab.fill("#description", "typed while the row is on its way")
    with tab.expect_request(f"**{places.EXPERIMENT_FORM}"):
        tab.press("#description", "Tab")
    for one in reversed(asked):
        one.continue_()
    expect(tab.locator("#data-1-path")).to_be_visible()
    tab.unroute_all()
    tab.get_by_role("button", name="Add data").click()
    expect(tab.locator("#data-2-path")).to_be_visible()
    expect(tab.locator("#data-3-path")).to_have_count(0)
    expect(tab.locator("#description")).to_have_value("typed while the row is on its way")


def test_what_is_typed_during_an_upload_is_kept(live: Live, tab: Tab) -> None:
    from playwright.sync_api import expect

    begun(live, tab)
    sent = held(tab, places.DEFINITIONS)
    with tab.expect_request(f"**{places.DEFINITIONS}"):
        tab.get_by_role("button", name="Upload and add").click()
    tab.fill("#name", "first")
    tab.get_by_role("button", name="Add data").click()
    tab.fill("#data-1-path", str(SAMPLE / "data"))
    [one] = sent
    one.continue_()
    expect(tab.locator("[name$=-definition]")).to_have_value("alice/digits")
    expect(tab.locator("#name")).to_have_value("first")
    expect(tab.locator("#data-1-path")).to_have_value(str(SAMPLE / "data"))
    expect(tab.locator("[name=new-name]")).to_have_value("")


def test_a_newcomer_uploads_data_and_finds_it_in_the_builder(live: Live, tab: Tab) -> None:
    from playwright.sync_api import expect

    base = f"http://127.0.0.1:{live.port}"
    tab.goto(f"{base}{places.NEW_EXPERIMENT}?choose=data")
    with tab.expect_popup() as opened:
        tab.get_by_role("link", name="Upload files").click()
    other = opened.value
    other.get_by_role("button", name="Upload", exact=True).click()
    expect(other.locator("[data-said]")).to_contain_text("Choose files")
    other.set_input_files("[name=file] >> nth=1", SAMPLE / "data")
    other.fill("[name=folder]", "digits")
    other.get_by_role("button", name="Upload", exact=True).click()
    expect(other.get_by_role("link", name="data/")).to_be_visible()
    assert (live.settings.data_fs / "digits" / "data" / "digits.csv.gz").is_file()
    other.set_input_files("[name=file] >> nth=0", SAMPLE / "train.py")
    other.get_by_role("button", name="Upload", exact=True).click()
    expect(other.get_by_role("link", name="train.py")).to_be_visible()
    other.set_input_files("[name=file] >> nth=0", SAMPLE / "train.py")
    other.get_by_role("button", name="Upload", exact=True).click()
    expect(other.locator("[data-said]")).to_contain_text("already exists")
    expect(other.get_by_role("button", name="Upload", exact=True)).to_be_enabled()
    tab.bring_to_front()
    tab.get_by_role("button", name="Close").click()
    tab.get_by_role("button", name="Choose the folder").click()
    tab.get_by_role("button", name="digits/").click()
    expect(tab.locator("#data-1-path")).to_have_value("digits")
