"""The console with many runs: its pages in a real browser, and its calls while many pages are open.

    python benchmarks/console.py [--runs N] [--steps N] [--mlflow PYTHON] [--aim PYTHON] [--stores FOLDER] [--json]

A page counts until its table and the charts in view are drawn: the median of `ROUNDS` openings with a warm browser.
`--mlflow` and `--aim` name the Python of an environment with the product. The benchmark then also measures its
pages, with the same browser. It imports the runs through the API of the product. `--stores` keeps the imported runs for
later calls.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
from console_bench.data import fill_home
from console_bench.peers import Peer, aim, mlflow
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright
from playwright.sync_api import Error as PlaywrightError
from server_load import Backend, Client, one_job, percentiles, reading, with_clients

ROUNDS, PEER_ROUNDS, LIVE_PAGES, MANY = 7, 3, 200, 100_000
ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--enable-precise-memory-info",
    "--disable-features=SpareRendererForSitePerProcess",
)
#: Maximum milliseconds of one opening of a page.
PATIENCE = 60_000
#: Whether the charts in view are drawn.
DRAWN = """() => !document.querySelector('.htmx-request') && [...document.querySelectorAll('[data-chart]')].every(
  (one) => one.getBoundingClientRect().top > innerHeight || one.querySelector('canvas, .plot p:not(.late)'))"""


def seconds(tab: Page, url: str, ready: str) -> float:
    """Open a page, and return the seconds until the function `ready` returns true in it."""
    begin = time.perf_counter()
    tab.goto(url, wait_until="commit", timeout=PATIENCE)
    tab.wait_for_function(ready, polling=5, timeout=PATIENCE)
    return time.perf_counter() - begin


def openings(tab: Page, url: str, ready: str, rounds: int = ROUNDS) -> dict[str, float]:
    """Return the milliseconds of the first opening, and the median of the next ones."""
    took = []
    for _ in range(rounds + 1):
        if "#" in url:  # otherwise the browser would keep the page
            tab.goto("about:blank")
        took.append(1000 * seconds(tab, url, ready))
    return {"first": round(took[0]), "median": round(statistics.median(took[1:]))}


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


def memory(browser: Browser, context: BrowserContext, url: str, ready: str) -> dict[str, float]:
    """Return the MB of a new tab with a page, after a collection of garbage: of its scripts; of its process as the task
    manager of Chromium counts them (private, without files), with its part of shared pages (PSS), and with all of them
    (RSS)."""
    tools = browser.new_browser_cdp_session()

    def renderers() -> set[int]:
        found = tools.send("SystemInfo.getProcessInfo")["processInfo"]
        return {one["id"] for one in found if one["type"] == "renderer"}

    before = renderers()
    tab = context.new_page()
    seconds(tab, url, ready)
    page = context.new_cdp_session(tab)
    page.send("HeapProfiler.collectGarbage")
    found = {"scripts": page.send("Runtime.getHeapUsage")["usedSize"]}
    # A page of another site than the empty one has another process; the old one may end late.
    process = psutil.Process(max(renderers() - before, key=lambda one: psutil.Process(one).create_time()))
    full = process.memory_full_info()
    status = dict(line.split(":", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
    private = sum(1024 * int(status[name].split()[0]) for name in ("RssAnon", "VmSwap"))
    tab.close()
    sizes = {**found, "private": private, "PSS": full.pss, "RSS": full.rss}
    return {name: round(size / 2**20, 1) for name, size in sizes.items()}


def console_pages(browser: Browser, context: BrowserContext, base: str, runs: int) -> dict[str, Any]:
    """Measure the pages of the console."""
    table = "() => document.querySelectorAll('#runs tbody tr').length > 20 && document.readyState !== 'loading'"
    chosen = "&".join(f"id=local-{number}" for number in range(1, 21))
    pages = {"runs table": (f"{base}/console/runs", table), "run": (f"{base}/console/runs/local-{runs}", DRAWN),
             "compare 20 runs": (f"{base}/console/runs/compare?{chosen}", DRAWN)}
    found: dict[str, Any] = {"first load, KB": round(received(context, *pages["runs table"]) / 1000, 1)}
    found |= measured_pages(context, pages, ROUNDS)
    blank = ("about:blank", "() => document.readyState === 'complete'")
    for name, page in {"an empty page": blank, **pages}.items():
        found[f"MB of the tab: {name}"] = memory(browser, context, *page)
    return found


def measured_pages(context: BrowserContext, pages: dict[str, tuple[str, str]], rounds: int) -> dict[str, Any]:
    """Return the milliseconds of each page, or the reason why the page was not measured."""
    found: dict[str, Any] = {}
    tab = context.new_page()
    for name, (url, ready) in pages.items():
        try:
            found[f"{name}, ms"] = openings(tab, url, ready, rounds)
        except PlaywrightError as problem:
            found[f"{name}, ms"] = f"not measured: {problem.message.splitlines()[0]}"
    tab.close()
    return found


def of_peer(browser: Browser, peer: Peer, folder: Path, options: argparse.Namespace) -> dict[str, Any] | str:
    """Measure the pages of another product, or return why it was not measured."""
    try:
        begin = time.perf_counter()
        peer.filled(folder / peer.name, options.runs, options.steps)
        took = round(time.perf_counter() - begin)
        with peer.served(folder / peer.name) as base:
            pages = peer.pages(base)
            context = browser.new_context()
            found: dict[str, Any] = {"import, s": took}
            found["first load, KB"] = round(received(context, *pages["runs table"]) / 1000, 1)
            found |= measured_pages(context, pages, PEER_ROUNDS)
            context.close()
            return found
    except (OSError, subprocess.SubprocessError, LookupError, PlaywrightError) as problem:
        return f"not measured: {type(problem).__name__}: {str(problem).splitlines()[0]}"


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
    targets = ("", "?page=500", "?sort=name", "?find=state:finished", "?find=digits", "?sort=metric.f1",
               "?sort=param.lr&page=500", "?find=f1%3E0.9", "?find=lr%3C0.1&sort=metric.loss")
    client, took = await Client(port, token).connect(), list[float]()
    for number in range(100):
        begin = time.perf_counter()
        status, _ = await client.ask("GET", f"/console/runs{targets[number % len(targets)]}", base="")
        assert status == 200
        took.append(time.perf_counter() - begin)
    client.close()
    return percentiles(took)


def chosen_peers(options: argparse.Namespace) -> list[Peer]:
    """Return the products to measure."""
    return [make(python) for make, python in ((mlflow, options.mlflow), (aim, options.aim)) if python is not None]


def measured(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield each measurement with its name, as soon as it is complete."""
    yield "load average", round(os.getloadavg()[0], 1)
    home = folder / "home"
    fill_home(home, options.runs, options.steps)
    program = shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=[*ARGUMENTS])
        with Backend(home) as backend:
            base = f"http://127.0.0.1:{backend.port}"
            context = browser.new_context(extra_http_headers={"Authorization": f"Bearer {backend.token}"})
            yield f"console, {options.runs} runs x {options.steps} steps", console_pages(
                browser, context, base, options.runs)
            context.close()
        for peer in chosen_peers(options):
            yield peer.name, of_peer(browser, peer, options.stores or folder, options)
        browser.close()
    with Backend(home) as backend:
        yield "200 live pages, exec-get", asyncio.run(with_live_pages(backend, options.runs))
    fill_home(home, MANY, 0, begin=options.runs)
    with Backend(home) as backend:
        yield "table of 100,000 runs", asyncio.run(many_rows(backend.port, backend.token))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--mlflow", type=Path, help="the Python of an environment with MLflow")
    parser.add_argument("--aim", type=Path, help="the Python of an environment with Aim")
    parser.add_argument("--stores", type=Path, help="folder that keeps the imported runs of MLflow and Aim")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the servers end, too
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, value in measured(options, Path(folder)):
            found[name] = value
            if not options.json:
                print("\n".join(shown({name: value})), flush=True)
    if options.json:
        print(json.dumps(found))


def shown(found: dict[str, Any], before: str = "") -> Iterator[str]:
    """Yield a line for each figure."""
    for name, value in found.items():
        if isinstance(value, dict) and any(isinstance(one, dict) for one in value.values()):
            yield f"{name}:"
            yield from shown(value, "  ")
        else:
            yield f"{before + name:36} {value}"


if __name__ == "__main__":
    main()
