"""Answers to changes that pages make, and what their forms contain."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request
from starlette.datastructures import FormData
from starlette.responses import RedirectResponse, Response

from local_backend.console.rendering import HEADERS


async def _form(request: Request) -> FormData:
    return await request.form()


#: The form of a change, for plain functions, which run in threads.
TheForm = Annotated[FormData, Depends(_form)]


def done(request: Request, path: str) -> Response:
    """Lead the browser to a page after a change: htmx loads the page, a plain form is redirected."""
    if "hx-request" in request.headers:
        return Response(status_code=204, headers={**HEADERS, "HX-Redirect": path})
    return RedirectResponse(path, 303, HEADERS)


def texts_of(form: FormData, name: str) -> list[str]:
    """Return all texts of a field of a form that may be there several times."""
    return [one for one in form.getlist(name) if isinstance(one, str)]


def field(form: FormData, name: str) -> str:
    """Return a field of a form as a text without blanks at its ends; empty for a field that is missing or a file."""
    found = form.get(name)
    return found.strip() if isinstance(found, str) else ""
