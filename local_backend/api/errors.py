"""Every error is plain text, `Error <code>: <sentence>.`, as the recorded server has it."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import InterfaceError, OperationalError, SQLAlchemyError
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response

from local_backend.runtime.launcher_log import one_line
from local_backend.submit.errors import BadSubmission, OverQuota, StorageFailed, SubmitError, TooLarge
from local_backend.vault import VaultError

_log = logging.getLogger(__name__)
_STATUS: dict[type[SubmitError], int] = {
    BadSubmission: 400, TooLarge: 413, OverQuota: 507, StorageFailed: 507,
}
#: What an answer other than success means, for the description of the API.
_MEANINGS = {
    400: "A value is wrong, or there is no exec with this id",
    401: "There is no valid token, or user and password are wrong",
    403: "Not for this user, or sent by a page of another origin",
    404: "There is no such path, plan or user",
    405: "The path does not take this method",
    409: "Not possible now",
    413: "The body is too large",
    415: "The body is packed",
    416: "There is nothing from there on",
    422: "The Idempotency-Key came with another submission",
    429: "Too many wrong passwords",
    500: "The server failed",
    501: "The local backend does not do this",
    503: "Not ready",
    507: "Quota, disk or database: nothing was stored",
}
_WAITS = {409, 429}
#: Key of a call's scope: its status looks like a failure of the server's, and is a limit of the user's.
REFUSED = "dlicmd.refused"
#: Characters of a sentence; beyond them it is cut.
_LONGEST = 4000
_SENTENCES = {404: "There is no such path", 405: "This path does not take this method"}


def answers(*codes: int) -> dict[int | str, dict[str, Any]]:
    """How the description of the API shows these failures."""
    return {code: _answer(code) for code in codes}


def _answer(code: int) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "description": f"{_MEANINGS[code]}: `Error {code}: <sentence>.`",
        "content": {"text/plain": {"schema": {"type": "string"}}},
    }
    if code in _WAITS:
        shown["headers"] = {"Retry-After": {"description": "Seconds", "schema": {"type": "string"}}}
    return shown


class ApiError(HTTPException):
    """An answer other than success; `detail` is a sentence without its full stop."""


def error_response(code: int, sentence: str, headers: Mapping[str, str] | None = None) -> PlainTextResponse:
    """The answer for an error: one line, whatever of the call the sentence quotes."""
    return PlainTextResponse(f"Error {code}: {one_line(sentence, _LONGEST)}.\n", code, headers)


def install(app: FastAPI) -> None:
    """Give every kind of failure its answer."""
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(SubmitError, _submit)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(SQLAlchemyError, _database)
    app.add_exception_handler(VaultError, _vault)
    app.add_exception_handler(Exception, _unexpected)


def _http(_request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    sentence = problem.detail if isinstance(problem, ApiError) else _SENTENCES.get(problem.status_code, problem.detail)
    return error_response(problem.status_code, sentence, problem.headers)


def _submit(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, SubmitError)
    if isinstance(problem, OverQuota):
        request.scope[REFUSED] = True
    return error_response(_STATUS[type(problem)], str(problem))


def _validation(_request: Request, problem: Exception) -> Response:
    assert isinstance(problem, RequestValidationError)
    first = problem.errors()[0]
    return error_response(400, f"{first['loc'][-1]}: {first['msg']}")


def _database(_request: Request, problem: Exception) -> Response:
    return database_failed(problem)


def database_failed(problem: Exception) -> Response:
    """The answer when its disk is full, in trouble, or gone; what was asked for has not been done."""
    _log.error("the database failed: %s", problem)
    reason = " ".join(str(getattr(problem, "orig", None) or type(problem).__name__).split())
    if isinstance(problem, OperationalError | InterfaceError) and not isinstance(problem.orig, sqlite3.Error):
        return error_response(503, f"The server does not reach its database ({reason}); nothing was changed")
    return error_response(507, f"The server cannot use its database ({reason}); nothing was changed")


def _vault(_request: Request, problem: Exception) -> Response:
    _log.error("%s", problem)
    return error_response(507, f"The server cannot use its keys ({problem}); nothing was changed")


def _unexpected(_request: Request, _problem: Exception) -> Response:
    """The traceback goes to the log, with the request's id: the web server writes what is raised again after this."""
    return error_response(500, "The server failed; its log (backend.log) says how")
