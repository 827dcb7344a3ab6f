"""Compare answers with the description of the API (/openapi.json), so that it stays correct."""

from __future__ import annotations

import copy
import json
import re
import threading
from collections.abc import Mapping
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

#: Largest body in bytes that is compared with its schema: a long list has many equal objects.
_LONGEST = 1 << 15
#: Pydantic fails if threads of a test derive the description at the same time.
_DERIVING = threading.Lock()


class Described:
    """The description of an API, with closed schemas: an answer must not have keys that are not described."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = copy.deepcopy(document)
        _close(self.document["components"]["schemas"])
        self._validators: dict[tuple[str, str, int, str], Draft202012Validator] = {}
        # A path without parameters comes before a path with some: /execs/frameworks is not an exec.
        self._paths = sorted(self.document["paths"], key=lambda path: path.count("{"))
        self._pattern = re.compile("|".join(f"({_pattern(path)})" for path in self._paths))

    def path_of(self, target: str) -> str | None:
        """The path, with its parameters unfilled, that a call reaches."""
        path = re.sub("/{2,}", "/", target.partition("?")[0]).rstrip("/")
        found = self._pattern.fullmatch(path)
        return None if found is None else self._paths[int(found.lastindex or 0) - 1]

    def check(self, method: str, target: str, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Assert that an answer is as described; names of `headers` are in lower case. Calls of paths and methods that
        are not described get no check."""
        path = self.path_of(target)
        if path is None or method.lower() not in self.document["paths"][path]:
            return
        answers = self.document["paths"][path][method.lower()]["responses"]
        assert str(status) in answers, f"{method} {path}: status {status} is not described"
        answer = self.resolved(answers[str(status)])
        code = headers.get("x-dli-error-code")
        if status >= 400:
            listed = answer["headers"]["X-DLI-Error-Code"]["schema"].get("enum", [])
            assert code is None or code in listed, f"{method} {path}: {status} with {code} is not described"
        kind = headers.get("content-type", "").partition(";")[0]
        if not body:
            return
        assert kind in answer.get("content", {}), f"{method} {path}: {status} as {kind} is not described"
        if kind.endswith("json") and len(body) <= _LONGEST:
            validator = self._validator((path, method, status, kind), answer["content"][kind])
            problem = next(validator.iter_errors(json.loads(body)), None)
            assert problem is None, f"{method} {path}: {status} {problem}"

    def resolved(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The description of an answer that may be a reference."""
        if "$ref" not in answer:
            return answer
        found: dict[str, Any] = self.document["components"]["responses"][answer["$ref"].rpartition("/")[2]]
        return found

    def _validator(self, key: tuple[str, str, int, str], content: dict[str, Any]) -> Draft202012Validator:
        if key not in self._validators:
            schema = {**content["schema"], "components": {"schemas": self.document["components"]["schemas"]}}
            self._validators[key] = Draft202012Validator(schema)
        return self._validators[key]


def of_this_version() -> Described:
    """The description of this server version."""
    with _DERIVING:
        return _of_this_version()


@cache
def _of_this_version() -> Described:
    from local_backend.api.app import application

    return Described(application().openapi())


def _pattern(path: str) -> str:
    # The name of a plan is a path.
    parameter = ".+" if "/resplan/" in path else "[^/]+"
    return "".join(parameter if part.startswith("{") else re.escape(part)
                   for part in re.split(r"(\{[^}]+\})", path))


def _close(schema: Any) -> None:
    if isinstance(schema, list):
        for item in schema:
            _close(item)
    elif isinstance(schema, dict):
        if "properties" in schema and schema.get("type") == "object":
            schema.setdefault("additionalProperties", False)
        for item in schema.values():
            _close(item)
