"""Answers as JSON. Whatever of a program's, a disk's or an earlier server's is in one, it reaches whoever asked: a list
of all is not lost for what one has in it."""

from __future__ import annotations

import json
import math
from typing import Any

from starlette.responses import JSONResponse


def encoded(value: Any) -> bytes:
    """The bytes of a value: `?` for what UTF-8 cannot say, null for what is no number to JSON."""
    try:
        text = _text(value)
    except ValueError:
        text = _text(_finite(value))
    return text.encode(errors="replace")


class JsonAnswer(JSONResponse):
    """An answer as JSON."""

    def render(self, content: Any) -> bytes:
        """Its bytes."""
        return encoded(content)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
