"""`--query-args`: checked here, and sent to the server as typed."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import unquote_plus

from dlicmd.console import inert, warn
from dlicmd.contract import wire
from dlicmd.errors import UsageProblem
from dlicmd.session import Session

OPTION = "--query-args"
#: Keys that servers accept: for a list of execs, and for the sums of holdings.
OF_EXECS = (wire.LIMIT, wire.STATE, wire.SORT_BY, wire.MINE)
OF_HOLDINGS = (wire.FROM, wire.TO, wire.BY, wire.KIND)


def query_of(session: Session, known: Sequence[str]) -> str | None:
    """Return the query of the command line. Warn about a key that is not in `known`, because servers may ignore it.
    Raises UsageProblem when `limit` is not a number."""
    text = session.line.text(OPTION)
    for pair in (text or "").lstrip("?").split("&"):
        key, _, value = (unquote_plus(part) for part in pair.partition("="))
        if key and key not in known:
            import difflib

            near = difflib.get_close_matches(key, known, n=1)
            meant = f"; did you mean {near[0]}?" if near else ""
            warn(f"{OPTION}: unknown key '{inert(key)}', which servers may ignore (known: {', '.join(known)}){meant}")
        if key == wire.LIMIT and not (value.isascii() and value.isdigit()):
            raise UsageProblem(f"{OPTION}: limit: '{inert(value)}' is not a whole number")
    return text
