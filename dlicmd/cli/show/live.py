"""The live view on a terminal: the program's output scrolls above two lines about the progress."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dlicmd.cli.show.times import duration
from dlicmd.cli.show.views import (
    ViewPart,
    elapsed,
    fitted,
    how_it_goes,
    share_done,
    what_it_says,
    where_it_is,
)
from dlicmd.contract import states, wire
from dlicmd.sdk.messages import inert

_STYLES = {states.RUNNING: "green", states.FINISHED: "bold green", states.ERROR: "bold red", states.KILLED: "yellow"}
#: Columns of the progress bar.
BAR = 20


class LiveView:
    """See `dlicmd.cli.show.views.View`."""

    def __init__(self, exec_id: str) -> None:
        self._exec_id = exec_id
        self._found: Mapping[str, Any] = {}
        self._began = time.monotonic()
        self._console = Console(highlight=False)
        self._live = Live(get_renderable=self._picture, console=self._console, refresh_per_second=4, transient=True)
        self._live.start()

    def line(self, text: str, task: str, stream: str) -> None:
        """See View. The terminal obeys no control sequence in the program's output."""
        self._console.print(
            Text(inert(text), style="red" if stream == "stderr" else ""), soft_wrap=True, markup=False,
        )

    def state(self, found: Mapping[str, Any]) -> None:
        """See View."""
        self._found = found

    def close(self) -> None:
        """See View."""
        if not self._live.is_started:
            return
        self._live.stop()
        if states.is_terminal(str(self._found.get(wire.STATE))):
            text = fitted([*where_it_is(self._found), *how_it_goes(self._found)], self._console.width - 2)
            self._console.print(Text(f"[{text}]", style="dim"), soft_wrap=True)

    def _picture(self) -> Group:
        width = self._console.width - 1
        name = Text(self._exec_id, style="bold", no_wrap=True)
        available = width - len(self._exec_id) - 1
        passed = elapsed(self._found) or duration(time.monotonic() - self._began)
        told = what_it_says(self._found)
        # A message that does not fit behind the state gets lines of its own: the reason of a wait is never cut.
        apart = told and len(fitted(where_it_is(self._found), available)) > available
        shown = {**self._found, wire.MESSAGE: ""} if apart else self._found
        parts = [*where_it_is(shown), ViewPart(f"{passed} elapsed", 3)]
        cells: list[Any] = [name]
        done = share_done(self._found)
        if done is not None and len(fitted(parts)) + BAR + 1 <= available:
            cells.append(ProgressBar(total=1.0, completed=done, width=BAR))
        style = "yellow" if self._found.get(wire.RECOVERING) else _STYLES.get(str(self._found.get(wire.STATE)), "cyan")
        cells.append(Text(fitted(parts, available), style=style, no_wrap=True, overflow="ellipsis"))
        row = Table.grid(padding=(0, 1))
        row.add_row(*cells)
        progress, leaving = how_it_goes(self._found), "Ctrl-C detaches"
        below = fitted([*progress, ViewPart(f"{leaving}, the job continues")])
        below = below if len(below) <= width else fitted([*progress, ViewPart(leaving)], width)
        reason = [Text(told, style=style, overflow="fold")] if apart else []
        return Group(row, *reason, Text(below, style="dim", no_wrap=True, overflow="ellipsis"))
