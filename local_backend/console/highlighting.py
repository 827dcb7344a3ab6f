"""Source code as HTML with classes, whose colors are in console.css. All text is escaped by Pygments."""

from __future__ import annotations

from markupsafe import Markup
from pygments import highlight
from pygments.formatters.html import HtmlFormatter
from pygments.lexers import get_lexer_for_filename
from pygments.lexers.special import TextLexer
from pygments.util import ClassNotFound

_FORMATTER = HtmlFormatter(nowrap=True, classprefix="h-")
#: Longer texts are shown without colors.
_LONGEST = 200_000


def highlighted(path: str, text: str) -> Markup:
    """Return a text with the colors of the language that the name of its file tells."""
    try:
        lexer = get_lexer_for_filename(path, stripnl=False) if len(text) <= _LONGEST else TextLexer(stripnl=False)
    except ClassNotFound:
        lexer = TextLexer(stripnl=False)
    return Markup(highlight(text, lexer, _FORMATTER))
