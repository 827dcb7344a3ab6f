"""The slots on a terminal, drawn again in place every 2 seconds."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from dlicmd.cli.show.top import BUSY, STATE, TopSection, headline, sections
from dlicmd.sdk.client import Client
from dlicmd.sdk.errors import Denied, ServerError, Unreachable
from dlicmd.sdk.messages import one_line

#: Seconds between two pictures.
EVERY = 2.0
_STYLES = {"free": "dim", "used": "green", "leaving": "yellow", "drained": "red"}
_FIRST_COLUMN = "bold"
#: Columns that get several lines on a narrow terminal.
_LONG = frozenset({STATE, "user", "job", "consumer", "name", "progress", "why"})


def watch(client: Client, view: Mapping[str, Any]) -> None:
    """Show the slots, at first as in `view`, until Ctrl-C. Then restore the terminal.

    A server that does not answer is tried again. Raises Denied.
    """
    client, trouble = client.impatient(), ""
    try:
        with Live(console=Console(highlight=False), screen=True, auto_refresh=False) as live:
            while True:
                live.update(picture(view, trouble), refresh=True)
                time.sleep(EVERY)
                try:
                    view, trouble = client.slot_view(), ""
                except Denied:
                    raise
                except (ServerError, Unreachable) as problem:
                    trouble = f"{problem}; trying again"
    except KeyboardInterrupt:
        return


class _Cut:
    """As much of a picture as the terminal has lines for. A last line says how much is left out."""

    def __init__(self, whole: Group) -> None:
        self._whole = whole

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.height or options.max_height
        lines = console.render_lines(self._whole, options.reset_height(), pad=False)
        left = len(lines) - max(0, room - 1) if len(lines) > room else 0
        for line in lines[: len(lines) - left]:
            yield from (*line, Segment.line())
        if left:
            yield Text(f"{left} more line{'' if left == 1 else 's'}; a taller terminal shows them", style="dim")


def picture(view: Mapping[str, Any], trouble: str) -> _Cut:
    """Return the content of the screen."""
    parts: list[Any] = [Text(headline(view), style="bold")]
    if trouble:
        parts.append(Text(one_line(trouble), style="red"))
    for section in sections(view):
        if section.rows:
            parts += [Text(), _table(section)]
    return _Cut(Group(*parts, Text(), Text("Ctrl-C ends this view, the jobs continue", style="dim")))


def _table(section: TopSection) -> Table:
    found = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in section.columns:
        found.add_column(name, no_wrap=name not in _LONG, overflow="fold" if name in _LONG else "ellipsis")
    for row in section.rows:
        found.add_row(*(_cell(name, one_line(row[name]), name == section.columns[0]) for name in section.columns))
    return found


def _cell(name: str, text: str, first: bool) -> Text:
    if name == STATE:
        return Text(text, style=_STYLES.get(text.partition(":")[0], ""))
    if name == BUSY and text:
        return Text(f"{_bar(int(text.rstrip('%')) / 100)} {text:>4}", style="cyan")
    return Text(text, style=_FIRST_COLUMN if first else "")


def _bar(share: float, width: int = 10) -> str:
    """Return `██████▌   `: a share of so many columns, exact to an eighth of a column."""
    eighths = round(share * width * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (" ▏▎▍▌▋▊▉"[rest] if rest else "")).ljust(width)
