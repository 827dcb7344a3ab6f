"""Links of pages to files that are not part of the site become plain text: the files are in the repository alone."""

from __future__ import annotations

import posixpath
import re
from typing import Any
from urllib.parse import unquote, urlsplit

_LINK = re.compile(r'<a href="([^"]*)">(.*?)</a>', re.DOTALL)


def on_page_content(html: str, *, page: Any, files: Any, **_: Any) -> str:
    """Return the content of a page without links that no file of the site answers."""
    known = {posixpath.normpath(file.url) for file in files if file.inclusion.is_included()}
    base = page.url if page.url.endswith("/") else posixpath.dirname(page.url)

    def kept(link: re.Match[str]) -> str:
        parts = urlsplit(link[1])
        target = posixpath.normpath(posixpath.join(base, unquote(parts.path)))
        return link[0] if parts.scheme or not parts.path or target in known else link[2]

    return _LINK.sub(kept, html)
