"""How pages show files of users and programs: as a picture, as the first rows of a table, or as text.

A browser gets a picture with the type of its content. An SVG picture may contain scripts: a browser runs none of them
in an <img>, and saves the file if its address is opened.
"""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response

from local_backend.console.rendering import HEADERS
from local_backend.errors import Invalid

#: Begin of a picture → its content type.
_PICTURES = {
    b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF87a": "image/gif", b"GIF89a": "image/gif",
    b"RIFF": "image/webp",
}
_WEBP, _SVG = "image/webp", "image/svg+xml"
_ENDINGS = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg")
#: Endings of tables, whose first rows are shown instead of their text.
_TABLES = (".csv", ".tsv", ".parquet", ".pq", ".jsonl", ".ndjson", ".npy", ".npz", ".csv.gz", ".tsv.gz")
#: Pictures that a page of files shows, and bytes of a text that a page shows.
THUMBNAILS, LONGEST_TEXT = 100, 64 * 1024


def is_picture(name: str) -> bool:
    """Return whether a file seems to be a picture, by its name."""
    return name.lower().endswith(_ENDINGS)


def is_table(name: str) -> bool:
    """Return whether a file seems to be a table, by its name."""
    return name.lower().endswith(_TABLES)


def text_of(content: bytes) -> str | None:
    """Return the begin or end of a file as text that a page shows, None if it is no text."""
    return None if b"\0" in content else content[:LONGEST_TEXT].decode("utf-8", "replace")


def picture_answer(content: bytes, name: str) -> Response:
    """Return a picture. Raises Invalid (`data.invalid`) if the content is none."""
    kind = next((kind for begin, kind in _PICTURES.items() if content.startswith(begin)), None)
    if kind is None and name.lower().endswith(".svg") and b"<svg" in content:
        kind = _SVG
    if kind is None or (kind == _WEBP and content[8:12] != b"WEBP"):
        raise Invalid("data.invalid", f"{name[:200]!r} is not a PNG, JPEG, GIF, WebP or SVG picture")
    headers = {**HEADERS, "Content-Security-Policy": "default-src 'none'; sandbox",
               "Content-Disposition": "attachment" if kind == _SVG else "inline"}
    return Response(content, headers=headers, media_type=kind)


def shown_cell(value: Any) -> str:
    """Return a cell of a table as text."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
