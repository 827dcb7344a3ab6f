"""The console with many runs: its pages in a real browser, and its calls while many pages are open.

    python benchmarks/console.py [--runs N] [--steps N] [--json]

A page counts until its table and the charts in view are drawn: the median of `ROUNDS` openings with a warm browser.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

from console_bench.data import fill_home
from playwright.sync_api import BrowserContext, Page, sync_playwright
from server_load import Backend, Client, one_job, percentiles, reading, with_clients

ROUNDS, LIVE_PAGES, MANY = 7, 200, 100_000
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--enable-precise-memory-info")
#: Whether the charts in view are drawn.
DRAWN = """() => !document.querySelector('.htmx-request') && [...document.querySelectorAll('[data-chart]')].every(
  (one) => one.getBoundingClientRect().top > innerHeight || one.querySelector('canvas, .plot p'))"""


def seconds(tab: Page, url: str, ready: str) -> float:
    """Open a page, and return the seconds until the function `ready` returns true in it."""
    begin = time.perf_counter()
    tab.goto(url, wait_until="commit")
    tab.wait_for_function(ready, polling=5)
    return time.perf_counter() - begin


def median_of(tab: Page, url: str, ready: str) -> float:
    """Return the median in milliseconds of `ROUNDS` openings after one that is not counted."""
    seconds(tab, url, ready)
    return round(1000 * statistics.median(seconds(tab, url, ready) for _ in range(ROUNDS)), 0)


def received(context: BrowserContext, url: str, ready: str) -> int:
    """Return the bytes that a browser without a cache receives for a page."""
    tab = context.new_page()
    network, found = context.new_cdp_session(tab), list[int]()
    network.send("Network.enable")
    network.on("Network.loadingFinished", lambda one: found.append(one["encodedDataLength"]))
    seconds(tab, url, ready)
    tab.wait_for_load_state("load")
    tab.close()
    return sum(found)


def heap(context: BrowserContext, tab: Page) -> float:
    """Return the MB that the scripts of a tab hold after a collection of garbage."""
    tools = context.new_cdp_session(tab)
    tools.send("HeapProfiler.collectGarbage")
    return round(tools.send("Runtime.getHeapUsage")["usedSize"] / 2**20, 1)


def console_pages(context: BrowserContext, base: str, runs: int) -> dict[str, float]:
    """Measure the pages of the console."""
    table = "() => document.querySelectorAll('#runs tbody tr').length > 20 && document.readyState !== 'loading'"
    chosen = "&".join(f"id=local-{number}" for number in range(1, 21))
    found = {"first load, KB": round(received(context, f"{base}/console/runs", table) / 1000, 1)}
    tab = context.new_page()
    found["runs table, ms"] = median_of(tab, f"{base}/console/runs", table)
    found["run, ms"] = median_of(tab, f"{base}/console/runs/local-{runs}", DRAWN)
    found["heap of the run's tab, MB"] = heap(context, tab)
    found["compare 20 runs, ms"] = median_of(tab, f"{base}/console/runs/compare?{chosen}", DRAWN)
    found["heap of the comparison, MB"] = heap(context, tab)
    tab.close()
    return found


async def with_live_pages(backend: Backend, runs: int) -> dict[str, Any]:
    """Measure one exec in the API while `LIVE_PAGES` pages show the live overview, on which a job makes progress."""
    port, token, stop = backend.port, backend.token, asyncio.Event()
    await one_job(backend, quote("sh -c 'while sleep 1; do i=$((i+1)); echo \"loss: 0.$i\"; done'"), wait=False)

    async def follow(client: Client) -> None:
        path = "/console/live?part=overview"
        head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n\r\n"
        client.writer.write(head.encode())
        while not stop.is_set():
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(client.reader.readline(), 1)

    pages = asyncio.create_task(with_clients(LIVE_PAGES, port, token, follow))
    await asyncio.sleep(5)
    found = await reading(port, token, lambda: f"/execs/local-{random.randint(1, runs)}", 15, 4.0, 10)
    stop.set()
    await pages
    return found


async def many_rows(port: int, token: str) -> dict[str, float]:
    """Return the times of the runs table with `MANY` runs: first pages, later pages, sorted and filtered ones."""
    targets = ("", "?page=500", "?sort=name", "?find=state:finished", "?find=digits")
    client, took = await Client(port, token).connect(), list[float]()
    for number in range(100):
        begin = time.perf_counter()
        status, _ = await client.ask("GET", f"/console/runs{targets[number % len(targets)]}", base="")
        assert status == 200
        took.append(time.perf_counter() - begin)
    client.close()
    return percentiles(took)


def measured(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run all measurements."""
    found: dict[str, Any] = {"load average": round(os.getloadavg()[0], 1), "runs": options.runs, "steps": options.steps}
    home = folder / "home"
    fill_home(home, options.runs, options.steps)
    program = shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=[*ARGUMENTS])
        with Backend(home) as backend:
            base = f"http://127.0.0.1:{backend.port}"
            context = browser.new_context(extra_http_headers={"Authorization": f"Bearer {backend.token}"})
            found["console"] = console_pages(context, base, options.runs)
            context.close()
        browser.close()
    with Backend(home) as backend:
        found["200 live pages, exec-get"] = asyncio.run(with_live_pages(backend, options.runs))
    fill_home(home, MANY, 0, begin=options.runs)
    with Backend(home) as backend:
        found["table of 100,000 runs"] = asyncio.run(many_rows(backend.port, backend.token))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measured(options, Path(folder))
    print(json.dumps(found) if options.json else "\n".join(f"{name:28} {value}" for name, value in found.items()))


if __name__ == "__main__":
    main()
