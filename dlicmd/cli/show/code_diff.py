"""The differences between the code of two execs, as people read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dlicmd.cli.console import paint
from dlicmd.contract import wire
from dlicmd.contract.code_changes import CHANGE, DIFF
from dlicmd.sdk.messages import inert, one_line

#: The most lines that are printed of all files together.
_MOST_SHOWN = 400
_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def drawn(found: Sequence[Mapping[str, Any]]) -> str:
    """Return changes as people read them: the files, and below them the changed lines, as many as are printed."""
    said = [f"{change[CHANGE]:<7} {one_line(change[wire.PATH])}" for change in found]
    lines = [line for change in found for line in _shown(change)]
    left = len(lines) - _MOST_SHOWN
    more = [f"... {left} more lines; -o json prints all"] if left > 0 else []
    return "\n".join([*said, *([""] if lines else []), *lines[:_MOST_SHOWN], *more])


def _shown(change: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a diff, harmless to a terminal, in the colors of a diff."""
    for number, line in enumerate(change.get(DIFF, "").removesuffix("\n").split("\n") if change.get(DIFF) else ()):
        shown = inert(line.replace("\r", ""))
        yield paint(shown, "bold") if number < 2 else paint(shown, _STYLES[line[0]]) if line[:1] in _STYLES else shown
