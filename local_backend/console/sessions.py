"""Sessions of browsers: the cookie, and the text that every change must send with it.

A session is a token of a logon, in a cookie that scripts cannot read. A page of another site cannot send it: it is
strict about sites. Besides, each change needs a text that only pages of the session contain (CSRF token)."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from local_backend.api.depends import TOKEN
from local_backend.api.guard import SESSION
from local_backend.console import places
from local_backend.errors import AccessDenied

#: The header and the field of a form with the CSRF token.
HEADER, FIELD = "x-csrf-token", "csrf"


def csrf_of(token: str) -> str:
    """Return the CSRF token of a session. It does not tell the token of the session."""
    return hmac.digest(token.encode(), b"dlicmd console: csrf", hashlib.sha256).hex()[:40]


async def check_csrf(request: Request) -> None:
    """Raise Denied (`console.csrf`) unless a change has the CSRF token of its session, in the header or in its form."""
    token = request.scope.get(TOKEN)
    given = request.headers.get(HEADER)
    if given is None and request.scope["path"] in places.UPLOADS:
        given = ""  # the form may be large: scripts of pages send the header
    if given is None:
        found = (await request.form()).get(FIELD)
        given = found if isinstance(found, str) else ""
    if not token or not hmac.compare_digest(given.encode(), csrf_of(token).encode()):
        raise AccessDenied("console.csrf", "The page belongs to another session; load it again and repeat the change")


def keep(request: Request, response: Response, token: str) -> None:
    """Set the cookie of a session."""
    response.set_cookie(SESSION, token, **attributes(request))


def attributes(request: Request) -> dict[str, Any]:
    """Return the attributes of the cookie: hidden from scripts of pages, not sent with calls that other sites make,
    and sent only over TLS if this call came over TLS."""
    return {"path": "/", "httponly": True, "samesite": "strict", "secure": request.scope["scheme"] == "https"}
