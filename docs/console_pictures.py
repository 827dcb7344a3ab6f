"""Make the pictures of the console by running it: `python docs/console_pictures.py`.

Each picture is a page of a real server with 4 slots and real runs, in Debian's Chromium. Needs playwright and pillow,
of the extra `test`. Maintainers run it before a release.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
WIDE, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
#: Milliseconds for a page with a stream of events, which never rests, to draw its charts.
_DRAWN = 2500
#: Colors of a stored picture. The pages have few, so files stay small.
_COLORS = 128
_BROWSER = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
            "--disable-component-update", "--disable-sync")


def environment(home: Path) -> dict[str, str]:
    """Return the variables of a user without configuration, so that the settings of the caller change no picture."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DLI", "XDG_", "LOCAL_BACKEND_"))}
    return {**kept, "HOME": str(home.parent), "DLICMD_HOME": str(home), "DLI_SLOTS": "4"}


def command(home: Path, *words: str) -> str:
    """Run dlicmd on the server of a home and return its output."""
    done = subprocess.run([str(Path(sys.executable).parent / "dlicmd"), *words], cwd=ROOT, env=environment(home),
                          check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def train(home: Path, name: str, *words: str, wait: bool = False) -> str:
    """Submit the sample and return the id of the run."""
    line = ["run", "samples/digits/train.py", "--data", "samples/digits/data", "--workers", "4", "--name", name]
    return command(home, *line, "--wait" if wait else "--no-follow", "-o", "custom-columns=id", "--",
                   *words).splitlines()[-1]


def opened(browser: Browser, home: Path, theme: str = "light", phone: bool = False) -> Page:
    """Return a page of the console, logged on."""
    context = browser.new_context(viewport=PHONE if phone else WIDE, color_scheme=theme, reduced_motion="reduce")
    page = context.new_page()
    page.goto(command(home, "console", "--no-browser"))
    page.wait_for_url("**/console")
    return page


def keep(page: Page, name: str) -> None:
    """Store a picture of the page as it is seen."""
    page.wait_for_timeout(_DRAWN)
    found = Image.open(io.BytesIO(page.screenshot()))
    found.convert("RGB").quantize(_COLORS).save(IMAGES / f"console-{name}.png", optimize=True)


def main() -> None:
    """Make all pictures."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        home = Path(folder, "state")
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=list(_BROWSER))
        try:
            done = [train(home, f"lr {rate}", "--epochs", "8", "--lr", rate, wait=True)
                    for rate in ("0.0003", "0.001", "0.01")]
            page = opened(browser, home)
            address = page.url
            page.goto(f"{address}/runs/compare?{'&'.join(f'id={one}' for one in done)}")
            keep(page, "compare")
            first = train(home, "long", "--epochs", "400", "--engines", "4")
            page.goto(address)
            page.locator(".slot.used").nth(3).wait_for()
            second = train(home, "short", "--epochs", "60", "--engines", "4")
            page.locator(f"#overview .slot:has-text('{second}')").nth(1).wait_for()
            keep(page, "overview")
            page.goto(f"{address}/runs")
            keep(page, "runs")
            page.goto(f"{address}/experiments/new")
            keep(page, "builder")
            command(home, "stop", second)
            page.goto(address)
            page.locator(f"#overview .slot:has-text('{first}')").nth(3).wait_for(timeout=120_000)
            dark = opened(browser, home, "dark")
            dark.goto(f"{address}/runs/{first}")
            keep(dark, "run")
            small = opened(browser, home, "dark", phone=True)
            small.goto(f"{address}/runs/{first}")
            keep(small, "phone")
        finally:
            browser.close()
            subprocess.run([str(Path(sys.executable).parent / "local-backend"), "stop", "--jobs"], check=True,
                           env=environment(home), stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
