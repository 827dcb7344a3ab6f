"""The live view of a search on a terminal: its table of experiments with the best value so far."""

from __future__ import annotations

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from dlicmd.cli.show.search import experiments, outcome
from dlicmd.sdk.search_objects import Search

#: Lines beside the table: the state, the headings, a line about more experiments, how to leave, the prompt.
_OTHER_LINES = 5


class LiveSearch:
    """See `dlicmd.cli.show.search.PlainSearch`."""

    def __init__(self, name: str) -> None:
        self._found = Search({"hpoName": name})
        self._console = Console(highlight=False)
        self._live = Live(get_renderable=self._picture, console=self._console, refresh_per_second=4, transient=True)
        self._live.start()

    def show(self, found: Search) -> None:
        """Show the search as it is now."""
        self._found = found

    def close(self) -> None:
        """End the view. The table stays if the search has ended."""
        if not self._live.is_started:
            return
        self._live.stop()
        if self._found.has_ended:
            self._console.print(self._table(), soft_wrap=True)

    def _table(self) -> Text:
        rows = max(3, self._console.height - _OTHER_LINES)
        return Text.from_ansi("\n".join(experiments(self._found, self._console.width - 1, rows)))

    def _picture(self) -> Group:
        head = Text(outcome(self._found), style="bold", no_wrap=True, overflow="ellipsis")
        below = Text("Ctrl-C detaches, the search continues", style="dim", no_wrap=True, overflow="ellipsis")
        return Group(head, *([self._table()] if self._found.experiments else []), below)
