"""Pages as a browser gets them: with the cookie of a session, and with the CSRF token in changes."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from live_server import TOKEN, Answer, Live

from local_backend.api.guard import SESSION
from local_backend.console.sessions import csrf_of

#: Fields of a form. A field may have several values.
Fields = Mapping[str, str | Sequence[str]]


def get(live: Live, path: str, token: str = TOKEN, part: bool = False) -> Answer:
    """Load a page, or a part of one as htmx does."""
    more = {"HX-Request": "true"} if part else {}
    return live.call("GET", path, b"", {"Cookie": f"{SESSION}={token}", **more}, token=None, base="")


def post(live: Live, path: str, fields: Fields | None = None, token: str = TOKEN, csrf: str | None = None) -> Answer:
    """Send a form of a page."""
    values = [(name, one) for name, value in (fields or {}).items()
              for one in ([value] if isinstance(value, str) else value)]
    body = urlencode([("csrf", csrf_of(token) if csrf is None else csrf), *values]).encode()
    headers = {"Cookie": f"{SESSION}={token}", "Content-Type": "application/x-www-form-urlencoded"}
    return live.call("POST", path, body, headers, token=None, base="")


def words(answer: Answer) -> str:
    """Return the text of a page without its tags, with single spaces."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", answer.text)).split())
