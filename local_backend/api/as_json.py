"""Answers as JSON. Values that JSON or UTF-8 cannot represent are replaced: one such value of a program, a disk or an
earlier server must not make a whole list fail."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from starlette.responses import JSONResponse

T = TypeVar("T")


def encoded(value: Any) -> bytes:
    """Return a value as JSON in bytes. Characters that UTF-8 cannot encode become `?`. NaN and infinity become null."""
    try:
        text = _text(value)
    except ValueError:
        text = _text(_finite(value))
    return text.encode(errors="replace")


class JsonAnswer(JSONResponse, Generic[T]):
    """An answer as JSON. `content` is the object, or its JSON. The type of the object in the signature of a route is
    also the description of the answer in /openapi.json."""

    def __init__(
        self, content: T | bytes, status: int = 200, headers: Mapping[str, str] | None = None,
        media_type: str | None = None,
    ) -> None:
        super().__init__(content, status, headers, media_type)

    def render(self, content: Any) -> bytes:
        """Return the body."""
        return content if isinstance(content, bytes) else encoded(content)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
