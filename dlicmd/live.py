"""The live view on a terminal: the program's output scrolls by above two lines that tell the progress."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dlicmd.console import inert
from dlicmd.contract import states, wire
from dlicmd.times import duration
from dlicmd.views import how_it_goes, share_done, where_it_is

_STYLES = {states.RUNNING: "green", states.FINISHED: "bold green", states.ERROR: "bold red", states.KILLED: "yellow"}


class LiveView:
    """See `dlicmd.views.View`."""

    def __init__(self, exec_id: str) -> None:
        self._exec_id = exec_id
        self._found: dict[str, Any] = {}
        self._began = time.monotonic()
        self._console = Console(highlight=False)
        self._live = Live(get_renderable=self._picture, console=self._console, refresh_per_second=4, transient=True)
        self._live.start()

    def line(self, text: str, task: str, stream: str) -> None:
        """See View. Nothing that the program prints reaches the terminal as a command."""
        self._console.print(
            Text(inert(text), style="red" if stream == "stderr" else ""), soft_wrap=True, markup=False,
        )

    def state(self, found: dict[str, Any]) -> None:
        """See View."""
        self._found = found

    def close(self) -> None:
        """See View."""
        self._live.stop()

    def _picture(self) -> Group:
        state = str(self._found.get(wire.STATE) or "")
        row = Table.grid(padding=(0, 1))
        cells: list[Any] = [Text(self._exec_id, style="bold", no_wrap=True)]
        done = share_done(self._found)
        if done is not None:
            cells.append(ProgressBar(total=1.0, completed=done, width=20))
        text = f"{where_it_is(self._found)}  {duration(time.monotonic() - self._began)}"
        cells.append(Text(text, style=_STYLES.get(state, "cyan"), no_wrap=True, overflow="ellipsis"))
        row.add_row(*cells)
        parts = [how_it_goes(self._found), "Ctrl-C detaches, the job goes on"]
        return Group(row, Text("  ".join(part for part in parts if part), style="dim", no_wrap=True))
