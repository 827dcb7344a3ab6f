"""Fixtures of the tests of the console's pages."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from argon2 import PasswordHasher

from local_backend import password_hash
from local_backend.api.guard import SESSION
from local_backend.console.site import Console

# The server of these tests is the one of the tests of the server.
sys.path.insert(0, str(Path(__file__).parent.parent / "server"))
sys.path.insert(0, str(Path(__file__).parent))

from live_server import TOKEN, Live, settings_for
from support import PATIENCE
from visitor import Visitor, entered

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from playwright.sync_api import Page as Tab

#: What Debian names the browser without windows, which opens a page with a third of the work, and with windows; other
#: names.
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
#: No sandbox: tests may run as root. Nothing else than the pages of the test is loaded.
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync")

_closing: list[threading.Thread] = []


@pytest.fixture(scope="session", autouse=True)
def _cheap() -> Iterator[None]:
    """Fast password hashes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(password_hash, "_HASHER", PasswordHasher(time_cost=1, memory_cost=8, parallelism=1))
        yield
    for thread in _closing:
        thread.join()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Live]]:
    """A function that starts a server with its console and the given settings."""
    running: list[Live] = []

    def begin(**more: Any) -> Live:
        running.append(Live(settings_for(tmp_path / f"home{len(running)}", **more), pages=Console()))
        return running[-1]

    yield begin
    for live in running:
        _closing.append(threading.Thread(target=live.close))
        _closing[-1].start()


@pytest.fixture
def live(start: Callable[..., Live]) -> Live:
    """A server with default settings."""
    return start()


@pytest.fixture
def team(start: Callable[..., Live]) -> Live:
    """A server for several users, whose jobs are not isolated."""
    return start(embedded=False, jobs_share_server_account=True)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server for tests that leave nothing on it."""
    running = Live(settings_for(tmp_path_factory.mktemp("shared") / "home"), pages=Console())
    yield running
    running.close()


@pytest.fixture
def visitor(live: Live) -> Visitor:
    """A browser without scripts, logged on as the owner of the server."""
    return entered(live)


@pytest.fixture
def clock(team: Live) -> list[float]:
    """The time of the one-time links of the server, in seconds. A test changes it."""
    now = [1000.0]
    links = replace(team.services.links, clock=lambda: now[0])
    team.services = replace(team.services, links=links)
    team.guard.services = team.guard.app.state.services = team.services  # type: ignore[attr-defined]
    return now


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A real browser. Tests are skipped where none is installed, unless TEST_BROWSER=required."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        lacking = "no browser is installed; Debian: apt-get install chromium-headless-shell"
        pytest.fail(lacking) if os.environ.get("TEST_BROWSER") == "required" else pytest.skip(lacking)
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE * 1000)
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=program, args=[*ARGUMENTS])
        yield running
        running.close()


@pytest.fixture
def tab(live: Live, browser: Browser) -> Iterator[Tab]:
    """A tab that is logged on. The test fails if a script of a page fails."""
    base = f"http://127.0.0.1:{live.port}"
    context = browser.new_context(base_url=base, viewport={"width": 1280, "height": 900})
    context.set_default_timeout(PATIENCE * 1000)
    context.add_cookies([{"name": SESSION, "value": TOKEN, "url": base}])
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda problem: problems.append(str(problem)))
    yield page
    context.close()
    assert problems == []
