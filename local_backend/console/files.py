"""GET /console/static: the files that pages load."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from local_backend.console import places
from local_backend.console.assets import assets
from local_backend.console.rendering import HEADERS
from local_backend.console.route import router as pages
from local_backend.errors import NotFound

router = pages()
_KEPT = {**HEADERS, "Cache-Control": "public, max-age=31536000, immutable", "Vary": "Accept-Encoding"}


@router.get(places.STATIC + "/{digest}/{name}")
async def file(request: Request, digest: str, name: str) -> Response:
    """Return a file. Its content never changes, because its path contains a digest of it."""
    found = assets().get(name)
    if found is None or found.digest != digest:
        raise NotFound("http.no_such_path", "No such file; load the page again")
    if found.packed is not None and "gzip" in request.headers.get("accept-encoding", ""):
        return Response(found.packed, headers={**_KEPT, "Content-Encoding": "gzip"}, media_type=found.type)
    return Response(found.content, headers=_KEPT, media_type=found.type)
