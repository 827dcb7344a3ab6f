"""Every error is plain text, `Error <code>: <sentence>.`, as the recorded server has it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response

from local_backend.submit.errors import BadSubmission, OverQuota, StorageFailed, SubmitError, TooLarge
from local_backend.vault import VaultError

_log = logging.getLogger(__name__)
_STATUS: dict[type[SubmitError], int] = {
    BadSubmission: 400, TooLarge: 413, OverQuota: 507, StorageFailed: 507,
}
#: How the description of the API shows every failure.
RESPONSES: dict[int | str, dict[str, Any]] = {
    code: {
        "description": f"{whose}: `Error <code>: <sentence>.`",
        "content": {"text/plain": {"schema": {"type": "string"}}},
    }
    for code, whose in (("4XX", "What was asked for cannot be had"), ("5XX", "The server failed"))
}
_SENTENCES = {404: "There is no such path", 405: "This path does not take this method"}


class ApiError(HTTPException):
    """An answer other than success; `detail` is a sentence without its full stop."""


def error_response(code: int, sentence: str, headers: Mapping[str, str] | None = None) -> PlainTextResponse:
    """The answer for an error."""
    return PlainTextResponse(f"Error {code}: {sentence}.\n", code, headers)


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


def _submit(_request: Request, problem: Exception) -> Response:
    assert isinstance(problem, SubmitError)
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
    return error_response(507, f"The server cannot use its database ({reason}); nothing was changed")


def _vault(_request: Request, problem: Exception) -> Response:
    _log.error("%s", problem)
    return error_response(507, f"The server cannot use its keys ({problem}); nothing was changed")


def _unexpected(_request: Request, _problem: Exception) -> Response:
    """The traceback goes to the log, with the request's id: the web server writes what is raised again after this."""
    return error_response(500, "The server failed; its log (backend.log) says how")
