"""How pages show files of users and programs: as a picture, as the first rows of a table, or as text.

A browser gets a picture with the type of its content. An SVG picture may contain scripts: a browser runs none of them
in an <img>, and saves the file if its address is opened.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable
from pathlib import PurePosixPath
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
#: JSON with a longer line is shown with a line for each value, if that has at most so many characters.
_LONGEST_LINE, _LONGEST_INDENTED = 80, 200_000
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}:,]|[^][{}:,"\s]+')
#: Bytes that continue a character of UTF-8; control characters that texts do not have.
_CONTINUED, _CONTROLS = bytes(range(0x80, 0xC0)), re.compile(rb"[\x00-\x06\x0e-\x1a\x1c-\x1f\x7f]")


def is_picture(name: str) -> bool:
    """Return whether a file seems to be a picture, by its name."""
    return name.lower().endswith(_ENDINGS)


def is_table(name: str) -> bool:
    """Return whether a file seems to be a table, by its name."""
    return name.lower().endswith(_TABLES)


def parents(path: str, link: Callable[[str], str]) -> list[tuple[str, str]]:
    """Return the names of the folders that lead to a path, and its own, with their addresses."""
    parts = PurePosixPath(path).parts
    return [(part, link(str(PurePosixPath(*parts[: at + 1])))) for at, part in enumerate(parts)]


def text_of(content: bytes, is_end: bool = False) -> tuple[str | None, bool]:
    """Return the beginning or, with `is_end`, the end of a file as text that a page shows, None if it is no text; and
    whether it was read as Latin-1, because it is not UTF-8. A character that is cut off is left out."""
    part = content[-LONGEST_TEXT:].lstrip(_CONTINUED) if is_end else content[:LONGEST_TEXT]
    if b"\0" in part:
        return None, False
    try:
        return codecs.getincrementaldecoder("utf-8-sig")().decode(part), False
    except UnicodeDecodeError:
        return (None, False) if _CONTROLS.search(part) else (part.decode("latin-1"), True)


def indented(text: str) -> str | None:
    """Return a JSON text with a line for each value, None if it needs no such change, or if it is not JSON. Numbers,
    texts and repeated names stay as they are."""
    if max(map(len, text.splitlines()), default=0) <= _LONGEST_LINE:
        return None
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    found, size, depth = list[str](), 0, 0
    tokens = _TOKENS.findall(text)
    for token, after in zip(tokens, [*tokens[1:], ""], strict=True):
        depth += (token in "[{") - (after in ("]", "}"))
        is_pair = (token, after) in (("[", "]"), ("{", "}"))
        if token == ":":
            piece = ": "
        elif not is_pair and (token in "[{," or after in ("]", "}")):
            piece = f"{token}\n{'  ' * depth}"
        else:
            piece = token
        found.append(piece)
        size += len(piece)
        if size > _LONGEST_INDENTED:
            return None
    return "".join(found)


def is_picture_content(content: bytes, name: str) -> bool:
    """Return whether the beginning of a file is that of a picture."""
    return _kind(content, name) is not None


def picture_answer(content: bytes, name: str) -> Response:
    """Return a picture. Raises Invalid (`data.invalid`) if the content is none."""
    kind = _kind(content, name)
    if kind is None:
        raise Invalid("data.invalid", f"{name[:200]!r} is not a PNG, JPEG, GIF, WebP or SVG picture")
    headers = {**HEADERS, "Content-Security-Policy": "default-src 'none'; sandbox",
               "Content-Disposition": "attachment" if kind == _SVG else "inline"}
    return Response(content, headers=headers, media_type=kind)


def _kind(content: bytes, name: str) -> str | None:
    """Return the content type of a picture, None if the content is none."""
    kind = next((kind for begin, kind in _PICTURES.items() if content.startswith(begin)), None)
    if kind is None and name.lower().endswith(".svg") and b"<svg" in content:
        kind = _SVG
    return None if kind == _WEBP and content[8:12] != b"WEBP" else kind


def shown_cell(value: Any) -> str:
    """Return a cell of a table as text."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
