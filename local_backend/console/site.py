"""The console as a part of the server: its routes, and the answers to calls that no route gets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import Scope

from local_backend.console import (
    admin,
    admin_people,
    admin_plans,
    admin_usage,
    builder,
    compare,
    data,
    data_connections,
    definitions,
    design,
    example,
    experiments,
    files,
    hardware,
    live,
    new_search,
    overview,
    places,
    run,
    run_changes,
    run_code,
    run_columns,
    run_curves,
    run_labels,
    run_logs,
    run_results,
    run_slots,
    run_views,
    runs,
    runs_csv,
    saved_models,
    searches,
    service_changes,
    services,
    session_pages,
)
from local_backend.console.rendering import HEADERS, page
from local_backend.console.session_pages import onward

ROUTERS = (
    session_pages.router, files.router, live.router, design.router, overview.router, example.router, admin.router,
    admin_people.router, admin_plans.router, admin_usage.router, data.router, data_connections.router, runs.router,
    runs_csv.router, compare.router, run_columns.router, run_views.router, run_labels.router, run_curves.router,
    run_slots.router, run_logs.router, run_code.router, run_changes.router, run_results.router, run.router,
    new_search.router, searches.router, saved_models.router, services.router, service_changes.router,
    definitions.router, hardware.router, builder.router, experiments.router,
)
_TITLES = {
    401: "Log on first", 403: "Not permitted", 404: "Not found", 405: "Not possible here", 409: "Not possible now",
    413: "Too large", 429: "Too many calls", 500: "The server failed", 503: "The server is not ready",
}
#: Codes of the contract have the status 400 for what is not found.
_NOT_FOUND = ("not_found", "no_such_path")
#: What pages name a run.
_EXEC = re.compile(r"^Exec\b")


class Console:
    """The pages of a server."""

    @property
    def routers(self) -> tuple[APIRouter, ...]:
        """The routes of all pages."""
        return ROUTERS

    def has(self, path: str) -> bool:
        """Return whether a path is one of a page."""
        return places.is_page(path)

    def is_open(self, path: str) -> bool:
        """Return whether a page needs no session."""
        return places.is_open(path)

    def is_upload(self, path: str) -> bool:
        """Return whether the form of a page contains files, and has a limit of its own."""
        return path in places.UPLOADS

    def largest(self, path: str) -> int | None:
        """Return the maximum bytes of the form of a page that may be larger than other bodies."""
        return places.LARGEST_TRIAL if places.is_trial(path) else None

    def error(self, scope: Scope, status: int, code: str, sentence: str, headers: Mapping[str, str]) -> Response:
        """Return the page for an error: the logon page for a browser without a session, one line for a part of a
        page."""
        request = Request(scope)
        sentence = _EXEC.sub("Run", sentence)
        more = {**HEADERS, **{name: value for name, value in headers.items() if name.lower() != "www-authenticate"}}
        is_part = "hx-request" in request.headers
        if status == 401:
            back = scope["path"] if scope["method"] == "GET" and not is_part else places.HOME
            query = scope.get("query_string", b"").decode("latin-1")
            target = f"{back}?{query}" if query and back == scope["path"] else back
            to = f"{places.LOGON}?next={quote(onward(target))}"
            if is_part:
                return PlainTextResponse(sentence, 401, {**more, "HX-Redirect": to})
            return RedirectResponse(to, 303, more)
        if is_part:
            return PlainTextResponse(sentence, status, more)
        title = "Not found" if code.endswith(_NOT_FOUND) else _TITLES.get(status, "The server refused this")
        answer = page(request, "error.html", status, title=title, sentence=sentence, code=code)
        answer.headers.update({name: value for name, value in more.items() if name not in HEADERS})
        return answer

    def arrival(self, scope: Scope) -> Response:
        """Return the page for a browser that comes from another site, which loads the wanted page again."""
        query = scope.get("query_string", b"").decode("latin-1")
        path = quote(scope["path"])
        return page(Request(scope), "onward.html", next=f"{path}?{query}" if query else path)
