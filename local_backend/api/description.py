"""The description of the API (/openapi.json): what FastAPI derives from the routes, with additions and corrections."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from local_backend.api.errors import answers
from local_backend.api.guard import OPEN_PATHS, SESSION

#: Error responses of every path.
COMMON = answers(400, 401, 403, 404, 405, 413, 415, 429, 500, 507)
_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "token": {"type": "apiKey", "in": "header", "name": "X-Auth-Token"},
    "basic": {"type": "http", "scheme": "basic"},
    "session": {"type": "apiKey", "in": "cookie", "name": SESSION},
}
#: FastAPI describes its own answer (422) to a wrong value. This server answers 400 instead.
_NOT_OURS = "HTTPValidationError"


def header(name: str, description: str) -> dict[str, Any]:
    """Return the description of a header that a route reads itself."""
    return {"name": name, "in": "header", "required": False, "description": description, "schema": {"type": "string"}}


def query(*names: str) -> list[dict[str, Any]]:
    """Return the description of query parameters that a route reads itself."""
    return [{"name": name, "in": "query", "required": False, "schema": {"type": "string"}} for name in names]


def install(app: FastAPI) -> None:
    """Make the application complete its own description."""
    derive = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            _complete(derive())
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]


def _complete(document: dict[str, Any]) -> None:
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["security"] = [] if path in OPEN_PATHS else [{name: []} for name in _SCHEMES]
            if _NOT_OURS in str(operation["responses"].get("422")):
                del operation["responses"]["422"]
    document["components"] = {"securitySchemes": _SCHEMES}
