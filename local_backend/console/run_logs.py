"""GET /console/runs/{id}/logs: the logs of a run, as windows of lines; and a search in them."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import Request
from starlette.responses import Response

from local_backend.api.as_json import JsonAnswer
from local_backend.api.bulk import bulk
from local_backend.api.depends import TheCaller, TheServices
from local_backend.console import places
from local_backend.console.rendering import HEADERS, page
from local_backend.console.route import router as pages
from local_backend.console.run import about
from local_backend.services.load import READING
from local_backend.services.log_windows import main_log

router = pages()
#: What the loggers of WMLA's samples print before a number of batches.
_BATCHES = "Global steps:"


@router.get(places.RUNS + "/{run}/logs")
@bulk(READING, stream=False)
def logs(
    *, request: Request, services: TheServices, caller: TheCaller, run: str, log: str = "", at: int | None = None,
) -> Response:
    """Show the end of a log, or the lines from an offset on."""
    files = services.logs.files(caller, run)
    first = main_log(files)
    chosen = log or (first.name if first else "")
    window = services.logs.window(caller, run, chosen, after=at) if chosen else None
    found = about(request, services, caller, run, "/logs")
    counts_batches = found["row"].elastic and window is not None and any(_BATCHES in one.text for one in window.lines)
    return page(request, "run_logs.html", **found, files=files, log=chosen, window=window, at_end=at is None,
                counts_batches=counts_batches)


@router.get(places.RUNS + "/{run}/logs/window")
@bulk(READING, stream=False)
def window(
    *, services: TheServices, caller: TheCaller, run: str, log: str, before: int | None = None,
    after: int | None = None,
) -> Response:
    """Return lines as JSON, for logs.js."""
    found = services.logs.window(caller, run, log, before=before, after=after)
    return JsonAnswer(asdict(found), headers=HEADERS)


@router.get(places.RUNS + "/{run}/logs/search")
@bulk(READING, stream=False)
def search(
    *, services: TheServices, caller: TheCaller, run: str, log: str, text: str = "", start: int = 0,
) -> Response:
    """Return lines that contain a text, and where the search continues."""
    return JsonAnswer(asdict(services.logs.search(caller, run, log, text, start)), headers=HEADERS)
