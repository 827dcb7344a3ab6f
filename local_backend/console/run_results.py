"""GET /console/runs/{id}/results: the files that the program of a run wrote, and what is in them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import Request
from starlette.responses import Response

from dlicmd.contract import wire
from local_backend.api.as_json import JsonAnswer
from local_backend.api.bulk import bulk
from local_backend.api.depends import TheCaller, TheServices
from local_backend.console import places
from local_backend.console.highlighting import highlighted
from local_backend.console.previews import (
    LONGEST_TEXT,
    THUMBNAILS,
    is_picture,
    is_table,
    picture_answer,
    shown_cell,
    text_of,
)
from local_backend.console.rendering import HEADERS, in_order, page
from local_backend.console.route import router as pages
from local_backend.console.run import about
from local_backend.services.load import PACKING, PREVIEW
from local_backend.services.services import Services
from local_backend.store.execs import ExecRow

router = pages()
#: Part of the names of event files of TensorBoard, and the number of such files whose pictures the first page shows.
_EVENTS, _SHOWN_EVENTS = ".tfevents.", 3
#: Larger pictures have no thumbnail.
_LARGEST_THUMBNAIL = 4 << 20
#: The page shows the end of a text.
_END = "end"


@router.get(places.RUNS + "/{run}/results")
@bulk(PACKING, stream=False)
def results(
    *, request: Request, services: TheServices, caller: TheCaller, run: str, file: str = "", view: str = ""
) -> Response:
    """Show the files that the program wrote, and one of them or the pictures among them. htmx gets only the latter."""
    if file and "hx-request" in request.headers:
        row = services.execs.find(caller, run)
        return page(request, "run_file.html", **_links(row), **_file(services, row, file, view))
    found = about(request, services, caller, run, "/results")
    row = found["row"]
    files, complete = services.execs.written(row).listed()
    named = [one for one in files if is_picture(one.path) and one.size <= _LARGEST_THUMBNAIL]
    events = sorted((one for one in files if is_events(one.path)), key=lambda one: -one.modified)
    shown = _file(services, row, file, view) if file else {
        "name": "", "pictures": _addresses(row, (one.path for one in named[:THUMBNAILS])),
        "more_pictures": len(named) > THUMBNAILS, "events": [one.path for one in events[:_SHOWN_EVENTS]]}
    return page(request, "run_results.html", **found | _links(row), files=files, complete=complete, **shown)


@router.get(places.RUNS + "/{run}/results/picture")
@bulk(PREVIEW, stream=False)
def picture(
    *, services: TheServices, caller: TheCaller, run: str, file: str, at: int = 0, size: int | None = None
) -> Response:
    """Return a picture: a file, or a part of an event file."""
    part = {} if size is None else {"most": max(0, size)}
    content, _ = services.run_files.part(services.execs.find(caller, run), file, max(0, at), **part)
    return picture_answer(content, file)


@router.get(places.RUNS + "/{run}/results/events")
@bulk(PREVIEW, stream=False)
def events(*, request: Request, services: TheServices, caller: TheCaller, run: str, file: str) -> Response:
    """Show the pictures and histograms of an event file, as a part of a page."""
    row = services.execs.find(caller, run)
    return page(request, "run_events.html", **_links(row), name=file, **_summaries(services, row, file))


@router.get(places.RUNS + "/{run}/results/histogram")
@bulk(PREVIEW, stream=False)
def histogram(*, services: TheServices, caller: TheCaller, run: str, file: str, tag: str) -> Response:
    """Return the quantiles of a histogram over the steps, as charts.js draws them."""
    steps = services.run_files.summaries(services.execs.find(caller, run), file)["histograms"].get(tag, [])
    series = [{"name": name, "x": [one[0] for one in steps], "y": [one[number] for one in steps], "step": False}
              for number, name in enumerate(("minimum", "25 %", "median", "75 %", "maximum"), 1)]
    return JsonAnswer({"x": {"label": "step", "kind": "number"}, "y": {"label": ""}, "series": series, "marks": []},
                      headers=HEADERS)


def is_events(name: str) -> bool:
    """Return whether a file is an event file of TensorBoard, by its name."""
    return _EVENTS in name.rpartition("/")[2]


def _links(row: ExecRow) -> dict[str, Any]:
    """Return the addresses that parts of the page link to."""
    return {"row": row, "place": f"{places.RUNS}/{row.id}", "rest": f"{wire.EXECS}/{row.id}"}


def _file(services: Services, row: ExecRow, path: str, view: str) -> dict[str, Any]:
    """Return how a page shows a file. Raises NotFound (`exec.no_file`)."""
    start = -LONGEST_TEXT if view == _END else 0
    head, size = services.run_files.part(row, path, start, LONGEST_TEXT)
    shown: dict[str, Any] = {"name": path, "size": size, "view": view, "picture": "", "found": None, "text": None,
                             "cut": size > LONGEST_TEXT, "cell": shown_cell, "pictures": None}
    if is_picture(path):
        return shown | {"picture": _address(row, path)}
    if is_events(path):
        return shown | _summaries(services, row, path)
    if is_table(path):
        return shown | {"found": services.run_files.rows(row, path)}
    text = text_of(head)
    return shown | {"text": None if text is None else highlighted(path, in_order(text))}


def _summaries(services: Services, row: ExecRow, path: str) -> dict[str, Any]:
    """Return the pictures of an event file by tag, each step with its address, and the tags of its histograms."""
    found = services.run_files.summaries(row, path)
    return {"tags": {tag: [(step, _address(row, path, at=at, size=size)) for step, at, size in steps]
                     for tag, steps in found["pictures"].items()},
            "histograms": list(found["histograms"]), "whole": found["complete"]}


def _addresses(row: ExecRow, names: Iterable[str]) -> dict[str, str]:
    return {name: _address(row, name) for name in names}


def _address(row: ExecRow, file: str, **part: int) -> str:
    query = urlencode({"file": file, **part}, quote_via=quote)
    return f"{places.RUNS}/{row.id}/results/picture?{query}"
