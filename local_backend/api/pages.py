"""The pages of a server beside its API, as the guard and the error answers know them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from fastapi import APIRouter
from starlette.responses import Response
from starlette.types import Scope

#: Scope key: the Pages of the server.
PAGES = "dlicmd.pages"


class Pages(Protocol):
    """The console."""

    @property
    def routers(self) -> Sequence[APIRouter]:
        """The routes of all pages."""

    def has(self, path: str) -> bool:
        """Return whether a path is one of a page."""

    def is_open(self, path: str) -> bool:
        """Return whether a page needs no session."""

    def is_upload(self, path: str) -> bool:
        """Return whether the form of a page contains files, and has a limit of its own."""

    def largest(self, path: str) -> int | None:
        """Return the maximum bytes of the form of a page that may be larger than other bodies; None for other
        pages."""

    def error(self, scope: Scope, status: int, code: str, sentence: str, headers: Mapping[str, str]) -> Response:
        """Return the page for an error; without a session, the page that asks for one."""

    def arrival(self, scope: Scope) -> Response:
        """Return the page for a browser that comes from another site. It loads the wanted page again: only then the
        browser sends the cookie of its session."""


def pages_of(scope: Scope) -> Pages | None:
    """Return the pages of the server if the path of the call is one of theirs."""
    found: Pages | None = scope.get(PAGES)
    return found if found is not None and found.has(str(scope.get("path", ""))) else None
