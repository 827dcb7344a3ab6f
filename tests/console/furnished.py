"""A server with something on every page: runs in every state, curves, logs, a search, services, users, tokens."""

from __future__ import annotations

import html
import json
import math
import re
from collections import deque
from pathlib import Path
from urllib.parse import urlsplit

from live_server import TOKEN, Live
from modelling import Modelling
from planning import Planning
from searching import Searching
from visitor import Page, entered

from dlicmd.contract import wire
from dlicmd.contract.states import ERROR, FINISHED, PENDING, RUNNING
from local_backend.console import places
from local_backend.console.compare import COMPARE
from local_backend.curves.book import Book
from local_backend.curves.file import CurveFile
from local_backend.curves.model import MetricValue

#: Segments of paths that name an object.
_NAMES = re.compile(r"local-\d+|\d+|digits.*|ping|bob|root|search-1|first")
_EVENTS = Path(__file__).parent.parent / "data" / "curves" / "pictures.tfevents"
RESULTS = ("history.csv", "config.json", "runs/a/events.out.tfevents.1.host", "plots/samples.png", "model/weights.pt",
           "train.log")
RUN = "--exec-start PyTorch --model-main main.py"


def write_curves(live: Live, run: str, steps: int = 300) -> None:
    """Write curves of training and validation as a runner does."""
    book, began = Book(), 1.7e9
    for step in range(1, steps + 1):
        for name, value in (("loss", 2 / (1 + step / 20)), ("accuracy", 1 - math.exp(-step / 60)),
                            ("validation loss", 2.1 / (1 + step / 25))):
            book.add("printed", MetricValue(name, value, step, "step", began + step))
    path = live.paths(run).curves
    path.parent.mkdir(parents=True, exist_ok=True)
    CurveFile(path, book, began)


def write_log(live: Live, run: str, text: str) -> None:
    """Write the output of a run as a runner does."""
    file = live.paths(run).capture("task12n-1", "stdout", False)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def write_files(live: Live, run: str) -> None:
    """Write a file of each kind that the page of a run shows, as a program does."""
    events = _EVENTS.read_bytes()
    at = events.index(b"\x89PNG")
    for name, content in zip(RESULTS, (
        b"epoch,loss\n1,0.5\n", b'{"layers": [1, 2]}', events, events[at : events.index(b"IEND") + 8],
        b"PK\0\1", b"line of a log\n" * 10_000,
    ), strict=True):
        path = live.paths(run).root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def furnish(live: Live) -> str:
    """Make the objects; return the id of the running exec."""
    for name, role in (("bob", "user"), ("root", "admin")):
        live.add_user(name, role)
    made = json.dumps({"name": "nightly", "scope": "submit", "expiresIn": 86400}).encode()
    assert live.call("POST", wire.TOKENS, made, {"Content-Type": "application/json"}, base="").status == 200
    ids = [live.submitted(f"{RUN} --appName digits-{number} --batch-size {2 ** number}") for number in range(6)]
    live.run_on(ids[0], "cpu-0")
    live.say(ids[0], {"step": 120, "steps": 300, "loss": 0.4})
    live.move(ids[1], PENDING, RUNNING, FINISHED)
    live.move(ids[2], PENDING, RUNNING, ERROR, message="main.py failed: exit code 1")
    live.move(ids[3], PENDING)
    live.move(ids[4], PENDING, RUNNING, FINISHED)
    for run in (ids[0], ids[1], ids[4]):
        write_curves(live, run)
        write_log(live, run, "".join(f"step {number}: loss: {1 / number:.4f}\n" for number in range(1, 200)))
    write_log(live, ids[2], "Traceback (most recent call last):\nValueError: \x1b[31mno\x1b[0m <b>data</b>\n")
    search = Searching(live)
    search.begin(name="search-1", maxJobNum=2, maxParalleJobNum=2)
    for number, run in enumerate(search.running(2, "search-1")):
        search.loss(run, 0.5 + number)
        ids.append(run)
    for run in ids:
        write_files(live, run)
    search.over("search-1")
    Modelling(live).deploy()
    plans = Planning(live)
    plans.defined()
    plans.plan()
    plans.run()
    return ids[0]


def shape(path: str) -> str:
    """Return a path with `*` in place of the names of objects: two pages with the same shape have the same parts."""
    return "/".join("*" if _NAMES.fullmatch(part) else part for part in urlsplit(path).path.split("/"))


def linked_pages(live: Live) -> list[str]:
    """Return the path of one page of each shape that links lead to, beginning at the sections."""
    visitor = entered(live, TOKEN)
    waiting = deque([*(section.path for section in places.SECTIONS), places.DESIGN])
    found: dict[str, str] = {}
    while waiting:
        path = waiting.popleft()
        if shape(path) in found:
            continue
        answer = visitor.get(path)
        if answer.status == 303:
            waiting.append(answer.headers["location"])
            found[shape(path)] = ""
            continue
        assert answer.status == 200, (path, answer.status, answer.text[:500])
        found[shape(path)] = path if answer.headers.get("content-type", "").startswith("text/html") else ""
        if found[shape(path)] and "content-disposition" not in answer.headers:
            for one in Page(answer.text).all("a"):
                target = urlsplit(one.get("href", ""))
                if places.is_page(target.path) and target.path != places.ROOT and "download" not in one:
                    # A comparison needs its runs; the other pages show something without a query.
                    waiting.append(html.unescape(one["href"]) if target.path == COMPARE else target.path)
        else:
            found[shape(path)] = ""
    return [path for path in found.values() if path]
