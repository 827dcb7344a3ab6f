"""Error answers. Each is plain text, `Error <status>: <sentence>.`, as in the recorded contract. The header
X-DLI-Error-Code contains the stable code. A client that accepts JSON but no text, or application/problem+json (RFC
9457), gets both as JSON."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Mapping

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import InterfaceError, OperationalError, SQLAlchemyError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response
from starlette.types import Scope

from dlicmd.contract import dlim, wire
from local_backend import errors
from local_backend.api.accept import JSON, TEXT, error_type
from local_backend.api.as_json import JsonAnswer
from local_backend.api.models.common import ErrorObject, ProblemObject
from local_backend.api.models.inference import DlimError
from local_backend.api.pages import pages_of
from local_backend.errors import BackendError, Invalid, OverQuota, StorageFailed, Unavailable
from local_backend.measures import REFUSALS
from local_backend.runtime.launcher_log import one_line
from local_backend.vault import VaultError

_log = logging.getLogger(__name__)


class BodyCompressed(BackendError):
    """The body is compressed."""


class RangeUnsatisfied(BackendError):
    """The requested range is outside the content."""


class BodyRefused(HTTPException):
    """The error of a body, as an HTTPException. FastAPI replaces any other exception that is raised while it reads a
    body."""

    def __init__(self, problem: BackendError) -> None:
        super().__init__(status_of(problem), str(problem))
        self.problem = problem


_STATUS: dict[type[BackendError], int] = {
    Invalid: 400, errors.Unauthorized: 401, errors.AccessDenied: 403, errors.NotFound: 404, errors.TooSlow: 408,
    errors.Conflict: 409,
    errors.TooLarge: 413, BodyCompressed: 415, RangeUnsatisfied: 416, errors.Mismatch: 422, errors.Busy: 429,
    Unavailable: 503, OverQuota: 507, StorageFailed: 507,
}
#: Codes whose status in the contract differs from the status of their error class.
_QUIRKS = {
    "exec.not_found": 400, "exec.ended": 400, "exec.no_result": 400, "exec.no_file": 400, "exec.no_driver": 400,
    "exec.no_executor": 400, "instance.not_found": 400, "object.not_found": 400, "submission.key_deleted": 400,
    "search.ended": 400, "search.not_stopped": 400, "volume.unreadable": 500,
}
#: Headers of a status.
_HEADERS = {
    401: {"WWW-Authenticate": 'Basic realm="dlicmd", charset="UTF-8"'}, 408: {"Connection": "close"},
    415: {"Accept-Encoding": "identity"},
}
#: Scope key: the code of the error in the answer.
CODE = "dlicmd.code"
#: Scope key: True when a limit of the user caused the status, which otherwise means a failure of the server.
REFUSED = "dlicmd.refused"
#: Maximum length of a sentence, in characters.
_LONGEST = 4000
_FRAMEWORK = {404: ("http.no_such_path", "No such path"),
              405: ("http.method", "This path does not accept this method")}


def status_of(problem: BackendError) -> int:
    """Return the HTTP status of an error."""
    kind = next(kind for kind in type(problem).__mro__ if kind in _STATUS)
    return _QUIRKS.get(problem.code, _STATUS[kind])


def refusal(scope: Scope, problem: BackendError, headers: Mapping[str, str] | None = None) -> Response:
    """Return the answer for an error."""
    status = status_of(problem)
    more = {**_HEADERS.get(status, {}), **(headers or {})}
    if problem.retry_after is not None:
        more["Retry-After"] = str(problem.retry_after)
    if isinstance(problem, OverQuota):
        scope[REFUSED] = True
    return error_response(scope, status, problem.code, str(problem), more)


def error_response(
    scope: Scope, status: int, code: str, sentence: str, headers: Mapping[str, str] | None = None
) -> Response:
    """Return the answer with a status and a code. The sentence becomes one line, even if it quotes multi-line text of
    the call."""
    scope[CODE] = code
    REFUSALS.labels(code).inc()
    line, more = f"{one_line(sentence, _LONGEST)}.", {wire.ERROR_CODE: code, **(headers or {})}
    pages = pages_of(scope)
    if pages is not None:
        return pages.error(scope, status, code, line, more)
    if str(scope.get("path", "")).startswith(f"{dlim.BASE}/"):  # clients of models read JSON alone
        told: DlimError = {"error": {"code": code, "message": line}, "msg": line}
        return JsonAnswer(told, status, more)
    kind = error_type(Headers(scope=scope))
    if kind == TEXT:
        return PlainTextResponse(f"Error {status}: {line}\n", status, more)
    if kind == JSON:
        said: ErrorObject = {"status": status, "code": code, "message": line}
        return JsonAnswer(said, status, more)
    problem: ProblemObject = {"status": status, "code": code, "detail": line}
    return JsonAnswer(problem, status, more, kind)


def install(app: FastAPI) -> None:
    """Register a handler for every kind of failure."""
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(BackendError, _backend)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(SQLAlchemyError, _database)
    app.add_exception_handler(VaultError, _vault)
    app.add_exception_handler(Exception, _unexpected)


def _http(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    if isinstance(problem, BodyRefused):
        return refusal(request.scope, problem.problem)
    status = problem.status_code
    code, sentence = _FRAMEWORK.get(status, (f"http.{status}", problem.detail))
    return error_response(request.scope, status, code, sentence, problem.headers)


def _backend(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, BackendError)
    return refusal(request.scope, problem)


def _validation(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, RequestValidationError)
    first = problem.errors()[0]
    return refusal(request.scope, Invalid("query.value", f"{first['loc'][-1]}: {first['msg']}"))


def _database(request: Request, problem: Exception) -> Response:
    return database_failed(request.scope, problem)


def database_failed(scope: Scope, problem: Exception) -> Response:
    """Return the answer for a failure of the database: its disk is full or faulty, or the server cannot reach it. The
    request has changed nothing."""
    _log.error("the database failed: %s", problem)
    reason = " ".join(str(getattr(problem, "orig", None) or type(problem).__name__).split())
    if isinstance(problem, OperationalError | InterfaceError) and not isinstance(problem.orig, sqlite3.Error):
        sentence = f"The server cannot connect to its database ({reason}); nothing was changed"
        return refusal(scope, Unavailable("database.unreachable", sentence))
    sentence = f"The server cannot use its database ({reason}); nothing was changed"
    return refusal(scope, StorageFailed("database.failed", sentence))


def _vault(request: Request, problem: Exception) -> Response:
    _log.error("%s", problem)
    sentence = f"The server cannot use its keys ({problem}); nothing was changed"
    return refusal(request.scope, StorageFailed("keys.failed", sentence))


def _unexpected(request: Request, _problem: Exception) -> Response:
    # The web server writes the traceback to the log, with the id of the request.
    sentence = "Internal error in the server; see its log (backend.log)"
    return error_response(request.scope, 500, "server.failed", sentence)
