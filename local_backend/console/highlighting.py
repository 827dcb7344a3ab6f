"""Source code as HTML with classes, whose colors are in console.css. All text is escaped.

Pygments runs in a process of its own, under limits: the regular expressions of its lexers can need hours for a file of
a few kilobytes.
"""

from __future__ import annotations

from contextlib import suppress

from markupsafe import Markup, escape

from local_backend import limited_work
from local_backend.limited_work import LimitExceeded, WorkLimits

#: Longer texts are shown without colors.
_LONGEST = 200_000
_LIMITS = WorkLimits(seconds=3, memory=512 << 20)


def highlighted(path: str, text: str) -> Markup:
    """Return a text with the colors of the language that the name of its file tells; without colors if the text is
    long, or if the limits are exceeded."""
    if len(text) <= _LONGEST:
        with suppress(LimitExceeded, OSError):
            return Markup(limited_work.call(f"{__name__}:as_html", [path, text], _LIMITS))
    return escape(text)


def as_html(path: str, text: str) -> str:
    """Return a text as HTML. Runs in a process of its own."""
    from pygments import highlight
    from pygments.formatters.html import HtmlFormatter
    from pygments.lexers import get_lexer_for_filename
    from pygments.lexers.special import TextLexer
    from pygments.util import ClassNotFound

    try:
        lexer = get_lexer_for_filename(path, stripnl=False)
    except ClassNotFound:
        lexer = TextLexer(stripnl=False)
    return str(highlight(text, lexer, HtmlFormatter(nowrap=True, classprefix="h-")))
