"""The description of the API (/openapi.json): the routes as FastAPI derives them, and what `about` says of each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_args, get_type_hints

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from typing_extensions import TypedDict

from dlicmd.contract import dlim, wire
from local_backend.api.accept import JSON, PROBLEM, TEXT
from local_backend.api.as_json import JsonAnswer
from local_backend.api.bulk import REFUSALS
from local_backend.api.guard import OPEN_PATHS, SESSION
from local_backend.api.models.common import ErrorObject, ProblemObject
from local_backend.api.models.inference import DlimError

F = TypeVar("F", bound=Callable[..., Any])

# Which users may make a call.
ANYONE = "anyone, without a token"
EVERY_USER = "every user"
OWN_EXECS = "every user, for their own execs; administrators, for all execs"
SUBMITTER = "the submitter of the exec"
OWNER = "the owner of the connection and administrators"
ADMINISTRATORS = "administrators"
#: Extension of a call beyond WMLA's contract that has no name in the configuration.
UNNAMED = ""

_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "token": {"type": "apiKey", "in": "header", "name": "X-Auth-Token"},
    "basic": {"type": "http", "scheme": "basic"},
    "session": {"type": "apiKey", "in": "cookie", "name": SESSION},
}
#: Meaning of each error status.
_MEANINGS = {
    400: "Invalid value, or no exec has this id",
    401: "No valid token, or wrong user or password",
    403: "Not permitted for this user, or sent by a page of another origin",
    404: "No such path, plan, user or connection",
    405: "The path does not accept this method",
    408: "The body arrives too slowly",
    409: "Not possible now",
    413: "The body is too large",
    415: "The body is compressed",
    416: "The requested range starts after the end",
    422: "The Idempotency-Key was used with a different submission",
    429: "Too many calls of this kind",
    500: "The server failed",
    501: "The local backend does not support this",
    502: "The kernel ended before it answered",
    503: "Not ready",
    504: "No kernel answered in time",
    507: "Quota, disk or database: nothing was stored",
}
#: Errors of every call: status → codes. A call that is not HTTP gets 400 without a code.
COMMON = {
    400: "", 401: "auth.required auth.wrong_password", 403: "auth.scope http.host http.origin",
    404: "http.no_such_path", 405: "http.method", 408: "http.too_slow", 413: "http.too_large", 415: "http.compressed",
    429: "auth.too_many_tries load.busy",
    500: "server.failed", 503: "database.unreachable", 507: "auth.no_keys database.failed keys.failed",
}
#: Meaning of each parameter whose route does not say it.
_PARAMETERS = {
    "exec_id": "ID of the exec", "app_id": "ID of the application or pack", "number": "number of the executor, from 1",
    "log": "name of the log", "instance": "`sigId` of an exec", "name": "name of the object",
    "args": "the command line", "backend": "library of the frameworks: PyTorch or TensorFlow",
    "by": "how to group the rows", "kind": "kind of the slots", "path": "path from the list of files",
    "cursor": "`cursor` of the answer before",
    "wait": "seconds to wait for news, at most 30", "length": "maximum number of objects; 10,000 by default",
    "start": "number of objects to skip", "limit": "maximum number of execs", "logType": "streams of the output",
    "all": "whether an administrator gets the execs of all users", "sort_by": "`FIELD`, `FIELD:asc` or `FIELD:desc`",
    "sort": "field to sort by; a leading `-` means descending order", "steps": "number of steps to verify",
    "state": "one state, or several separated by commas", "type": "`paralleljob` or `pod`",
    "n": "name of the search", "t": "name of the search", "m": "name of the model", "r": "name of the runtime",
    "new": "name of a model", "experiment": "ID of the experiment",
}
_WAITS = {409, 429}
_STRING: dict[str, Any] = {"type": "string"}
_FAILURES = "#/components/responses/"
#: Begins the names of the responses of calls below /dlim/v1.
_OF_MODELS = "inference"
_SCHEMAS = "#/components/schemas/"


@dataclass(frozen=True)
class About:
    """What the signature of a route does not say; see `about`."""

    callers: str
    errors: Mapping[int, str]
    extension: str | None
    body: Any
    headers: Mapping[str, str]
    media: str
    answers: Mapping[int, str]
    answer_headers: Mapping[str, str] = field(default_factory=dict)


_ABOUT: dict[Callable[..., Any], About] = {}


def about(
    callers: str,
    *,
    errors: Mapping[int, str] | None = None,
    extension: str | None = None,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    media: str = "application/json",
    answers: Mapping[int, str] | None = None,
    answer_headers: Mapping[str, str] | None = None,
) -> Callable[[F], F]:
    """Describe a route.

    Args:
        callers: the users who may make the call, as a phrase.
        errors: status → codes, separated by spaces, beside the errors of every call.
        extension: name of the extension in the configuration, None for a call of WMLA's contract.
        body: type of a JSON body that a service checks, or media type → type.
        headers: header of the call → its meaning.
        media: media types of an answer that is not JSON, separated by spaces; empty for an answer without content.
        answers: status of another answer without error → its meaning.
        answer_headers: header of the answer → its meaning.
    """

    def note(endpoint: F) -> F:
        found = dict(errors or {})
        if endpoint in REFUSALS:
            found[429] = f"{found.get(429, '')} {REFUSALS[endpoint]}".strip()
        if "body.json" in found.get(400, ""):  # large bodies are read in turns
            found[429] = f"{found.get(429, '')} load.busy".strip()
        _ABOUT[endpoint] = About(
            callers, found, extension, body, headers or {}, media, answers or {}, answer_headers or {}
        )
        return endpoint

    return note


def install(app: FastAPI, routers: Iterable[APIRouter]) -> None:
    """Make the application complete its own description."""
    derive = app.openapi
    routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            _complete(derive(), [route for route in routes if route.include_in_schema])
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]


def _complete(document: dict[str, Any], routes: Iterable[APIRoute]) -> None:
    schemas = _Schemas()
    for route in routes:
        for method in route.methods or ():
            _describe(document["paths"][route.path_format][method.lower()], route, schemas)
    found = schemas.made() | {
        name: schema for name, schema in document["components"]["schemas"].items()
        if not name.endswith("ValidationError")  # FastAPI's own answer to a wrong value; this server answers 400
    }
    document["components"] = {
        "securitySchemes": _SCHEMES, "schemas": dict(sorted(found.items())),
        "responses": {
            **{str(status): _failure(status, "") for status in COMMON},
            **{f"{_OF_MODELS}{status}": _failure(status, "", of_models=True) for status in COMMON},
        },
    }


def _describe(operation: dict[str, Any], route: APIRoute, schemas: _Schemas) -> None:
    """Complete the description of one call."""
    more = _ABOUT[route.endpoint]
    text = " ".join((route.endpoint.__doc__ or "").split())
    operation["summary"] = re.split(r"(?<=[.:])\s", text, maxsplit=1)[0].rstrip(".:")
    operation["description"] = text
    operation["security"] = [] if route.path in OPEN_PATHS else [{name: []} for name in _SCHEMES]
    operation["x-callers"] = more.callers
    if more.extension is not None:
        operation["x-extension"] = more.extension
    parameters = [_parameter(one) for one in operation.get("parameters", [])] + [
        {"name": name, "in": "header", "required": False, "description": meaning, "schema": _STRING}
        for name, meaning in more.headers.items()
    ]
    if parameters:
        operation["parameters"] = parameters
    if more.body is not None:
        bodies = more.body if isinstance(more.body, dict) else {"application/json": more.body}
        operation["requestBody"] = {
            "content": {media: {"schema": schemas.of(body)} for media, body in bodies.items()},
            "required": not isinstance(more.body, dict),
        }
    of_models = route.path.startswith(f"{dlim.BASE}/")
    common = f"{_FAILURES}{_OF_MODELS if of_models else ''}"
    failures = {
        status: _failure(status, codes, of_models=of_models) if (codes := more.errors.get(status))
        else {"$ref": f"{common}{status}"}
        for status in sorted({*COMMON, *more.errors})
    }
    operation["responses"] = _successes(operation["responses"], route, more, schemas) | {
        str(status): shown for status, shown in failures.items()
    }


def _parameter(one: dict[str, Any]) -> dict[str, Any]:
    """Return the description of a parameter, without null: an address cannot express it."""
    schema = {key: value for key, value in one["schema"].items() if key != "anyOf"}
    for kind in one["schema"].get("anyOf", ()):
        if kind != {"type": "null"}:
            schema |= kind
    return {**one, "description": one.get("description", _PARAMETERS.get(one["name"], "")), "schema": schema}


def _successes(
    derived: Mapping[str, dict[str, Any]], route: APIRoute, more: About, schemas: _Schemas
) -> dict[str, dict[str, Any]]:
    """Return the answers without error."""
    if 501 in more.errors:  # the server refuses every such call
        return {}
    status = next(iter(derived))
    shown: dict[str, Any] = {"description": "Done" if status == "204" or not more.media else "The answer"}
    told = get_type_hints(route.endpoint)["return"]
    if getattr(told, "__origin__", None) is JsonAnswer:
        shown["content"] = {"application/json": {"schema": schemas.of(get_args(told)[0])}}
    elif status != "204" and more.media:
        shown["content"] = {media: {"schema": _STRING} for media in more.media.split()}
    if more.answer_headers:
        shown["headers"] = {
            name: {"description": said, "schema": _STRING} for name, said in more.answer_headers.items()
        }
    others = {
        str(other): {**shown, "description": said} if other != 304 else {"description": said}
        for other, said in more.answers.items()
    }
    return {status: shown} | others


def _failure(status: int, own: str, *, of_models: bool = False) -> dict[str, Any]:
    """Return the description of an error with the codes of every call and its `own` ones. `of_models`: of a call below
    /dlim/v1, whose errors have another form."""
    codes = f"{COMMON.get(status, '')} {own}".split()
    shown: dict[str, Any] = {
        "description": f"{_MEANINGS[status]}: `Error {status}: <sentence>.`",
        "content": {
            TEXT: {"schema": _STRING}, JSON: {"schema": {"$ref": f"{_SCHEMAS}ErrorObject"}},
            PROBLEM: {"schema": {"$ref": f"{_SCHEMAS}ProblemObject"}},
        },
        "headers": {wire.ERROR_CODE: {
            "description": "The stable code", "schema": {**_STRING, **({"enum": sorted(codes)} if codes else {})},
        }},
    }
    if of_models:
        shown["description"] = _MEANINGS[status]
        shown["content"] = {JSON: {"schema": {"$ref": f"{_SCHEMAS}DlimError"}}}
    if status in _WAITS:
        shown["headers"]["Retry-After"] = {"description": "Seconds", "schema": _STRING}
    return shown


class _Untitled(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: Any) -> bool:
        """See the base class. A title would repeat the name."""
        return False


class _Schemas:
    """Collects the types of bodies and answers, and makes the schemas of all of them at once."""

    def __init__(self) -> None:
        self._kinds: dict[str, Any] = {}
        self._shown: list[tuple[str, dict[str, Any]]] = []
        self.of(ErrorObject)
        self.of(ProblemObject)
        self.of(DlimError)

    def of(self, kind: Any) -> dict[str, Any]:
        """Return the schema of a type; it is empty until `made`."""
        shown: dict[str, Any] = {}
        self._kinds[repr(kind)] = kind
        self._shown.append((repr(kind), shown))
        return shown

    def made(self) -> dict[str, Any]:
        """Fill all schemas, and return the definitions that they refer to."""
        asked = [(name, "validation", TypeAdapter(kind)) for name, kind in self._kinds.items()]
        found, definitions = TypeAdapter.json_schemas(
            asked, ref_template=f"{_SCHEMAS}{{model}}", schema_generator=_Untitled  # type: ignore[arg-type]
        )
        for name, shown in self._shown:
            shown.update(found[name, "validation"])
        schemas: dict[str, Any] = definitions["$defs"]
        for kind in self._kinds.values():
            _inherit((get_args(kind) or (kind,))[0], schemas)
        return schemas


def _inherit(kind: Any, schemas: Mapping[str, Any]) -> None:
    """Copy the descriptions of the fields that a TypedDict has from another one: pydantic does not."""
    for base in getattr(kind, "__orig_bases__", ()):
        if base is not TypedDict:
            _inherit(base, schemas)
            for name, shown in schemas[base.__name__]["properties"].items():
                if "description" in shown:
                    schemas[kind.__name__]["properties"][name].setdefault("description", shown["description"])
