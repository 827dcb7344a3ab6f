"""GET /console/runs/{id}/results: the files that the program of a run wrote, and what is in them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from fastapi import Depends, Request
from starlette.responses import Response

from dlicmd.contract import wire
from local_backend.api.as_json import JsonAnswer
from local_backend.api.bulk import bulk
from local_backend.api.depends import TheCaller, TheServices
from local_backend.console import places
from local_backend.console.experiments import number_of
from local_backend.console.highlighting import highlighted
from local_backend.console.previews import (
    LONGEST_TEXT,
    THUMBNAILS,
    indented,
    is_picture,
    is_picture_content,
    is_table,
    parents,
    picture_answer,
    shown_cell,
    text_of,
)
from local_backend.console.rendering import HEADERS, in_order, page
from local_backend.console.route import router as pages
from local_backend.console.run import about
from local_backend.services.browsing import MOST_BYTES
from local_backend.services.load import PACKING, PREVIEW
from local_backend.services.run_files import ROWS, ListedFolder
from local_backend.services.services import Services
from local_backend.store.execs import ExecRow

router = pages()
#: Part of the names of event files of TensorBoard, and the number of such files whose pictures the first page shows.
_EVENTS, _SHOWN_EVENTS = ".tfevents.", 3
#: Larger pictures have no thumbnail.
_LARGEST_THUMBNAIL = 4 << 20
#: The page shows the end of a text.
_END = "end"
#: Folders and files that a page of the list shows.
ENTRIES = 200
_JSON, _DIGITS = (".json", ".ipynb", ".geojson", ".webmanifest"), 18


@dataclass(frozen=True)
class ResultsQuery:
    """What the tab shows: a folder and a page of its list; and a file, or its end or a part of its rows."""

    folder: str = ""
    page: str = ""
    file: str = ""
    view: str = ""
    at: str = ""
    row: str = ""


_Query = Annotated[ResultsQuery, Depends()]


@router.get(places.RUNS + "/{run}/results")
@bulk(PACKING, stream=False)
def results(*, request: Request, services: TheServices, caller: TheCaller, run: str, query: _Query) -> Response:
    """Show a folder of the files that the program wrote, and one of the files or the pictures among them. htmx gets
    only the latter."""
    if query.file and "hx-request" in request.headers:
        row = services.execs.find(caller, run)
        return page(request, "run_file.html", **_links(row), **_file(services, row, query))
    found = about(request, services, caller, run, "/results")
    row = found["row"]
    listed = _list(services, row, query, query.file)
    shown = _file(services, row, query) if query.file else _gallery(row, listed["listed"])
    return page(request, "run_results.html", **found | _links(row) | listed | shown)


@router.get(places.RUNS + "/{run}/results/list")
@bulk(PACKING, stream=False)
def files(*, request: Request, services: TheServices, caller: TheCaller, run: str, query: _Query) -> Response:
    """Show the list of a folder again, which changes while the run is running. The address of the page names the file
    beside the list."""
    row = services.execs.find(caller, run)
    [name] = parse_qs(urlsplit(request.headers.get("hx-current-url", "")).query).get("file", [""])[:1]
    return page(request, "run_results_list.html", **_links(row), **_list(services, row, query, name))


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


def _list(services: Services, row: ExecRow, query: ResultsQuery, name: str) -> dict[str, Any]:
    """Return the page of a folder's list: the one with the file `name`, unless the query says which. A folder without
    files is empty."""
    folder = (query.folder or ("" if query.page else name.rpartition("/")[0])).strip("/")
    found = services.run_files.folder(row, folder)
    entries: list[Any] = [*found.folders, *found.files]
    at = next((at for at, one in enumerate(entries) if one.path == name), 0)
    number = min(max(number_of(query.page) or at // ENTRIES + 1, 1), max(1, -(-len(entries) // ENTRIES)))
    link = partial(_folder_address, row)
    return {
        "entries": entries[(number - 1) * ENTRIES:][:ENTRIES], "folders": {one.path for one in found.folders},
        "total": len(entries), "number": number, "size_of_page": ENTRIES, "folder": folder, "complete": found.complete,
        "above": parents(folder, link), "top": link(""), "list_link": link(folder), "folder_link": link, "name": name,
        "listed": found,
    }


def _gallery(row: ExecRow, listed: ListedFolder) -> dict[str, Any]:
    """Return the pictures and event files of a folder and the folders in it."""
    named = [one for one in listed.below if is_picture(one.path) and 0 < one.size <= _LARGEST_THUMBNAIL]
    event_files = sorted((one for one in listed.below if is_events(one.path)), key=lambda one: -one.modified)
    return {"pictures": _addresses(row, (one.path for one in named[:THUMBNAILS])),
            "more_pictures": len(named) > THUMBNAILS, "events": [one.path for one in event_files[:_SHOWN_EVENTS]]}


def _file(services: Services, row: ExecRow, query: ResultsQuery) -> dict[str, Any]:
    """Return how a page shows a file. Raises NotFound (`exec.no_file`)."""
    path, is_end = query.file, query.view == _END
    head, size = services.run_files.part(row, path, -LONGEST_TEXT if is_end else 0, LONGEST_TEXT)
    shown: dict[str, Any] = {"name": path, "size": size, "view": query.view, "picture": "", "found": None, "text": None,
                             "cut": size > LONGEST_TEXT, "cell": shown_cell, "pictures": None, "is_latin": False,
                             "is_indented": False, "flaw": "", "largest": MOST_BYTES}
    if not size:
        return shown | {"flaw": "empty"}
    if is_picture(path):
        flaw = "too large" if size > MOST_BYTES else "" if is_picture_content(head, path) else "no picture"
        return shown | {"flaw": flaw, "picture": "" if flaw else _address(row, path)}
    if is_events(path):
        return shown | _summaries(services, row, path)
    if is_table(path):
        at, first = _place(query.at), _place(query.row)
        table = services.run_files.rows(row, path, at)
        shown |= {"found": table, "at": at, "first": first, "most": ROWS}
        if table["ok"]:
            return shown
    text, is_latin = text_of(head, is_end)
    better = indented(text) if text and size <= LONGEST_TEXT and path.lower().endswith(_JSON) else None
    return shown | {"text": None if text is None else highlighted(path, in_order(better or text)),
                    "is_latin": is_latin, "is_indented": better is not None}


def _place(text: str) -> int:
    """Return a place in a file, or the number of a row; 0 for what is none."""
    return int(text) if text.isdecimal() and len(text) <= _DIGITS else 0


def _summaries(services: Services, row: ExecRow, path: str) -> dict[str, Any]:
    """Return the pictures of an event file by tag, each step with its address, and the tags of its histograms."""
    found = services.run_files.summaries(row, path)
    return {"tags": {tag: [(step, _address(row, path, at=at, size=size)) for step, at, size in steps]
                     for tag, steps in found["pictures"].items()},
            "histograms": list(found["histograms"]), "whole": found["complete"]}


def _addresses(row: ExecRow, names: Iterable[str]) -> dict[str, str]:
    return {name: _address(row, name) for name in names}


def _folder_address(row: ExecRow, folder: str) -> str:
    place = f"{places.RUNS}/{row.id}/results"
    return f"{place}?{urlencode({'folder': folder}, quote_via=quote)}" if folder else place


def _address(row: ExecRow, file: str, **part: int) -> str:
    query = urlencode({"file": file, **part}, quote_via=quote)
    return f"{places.RUNS}/{row.id}/results/picture?{query}"
