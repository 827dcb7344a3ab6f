"""A progress bar on standard error for long operations."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dlicmd.contract.sizes import show_size

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

#: Seconds before a bar appears.
PATIENCE = 1.0
#: Columns for the `^C` of a terminal. A terminal without them moves it to the next line, and the bar is not removed.
_ECHO = 3


class Bar:
    """A progress bar that is called with the number of bytes done. The bar appears only on a terminal, and only if the
    operation takes long."""

    def __init__(self, title: str, total: int | None) -> None:
        self._title, self._total = title, total
        self._begin = time.monotonic()
        #: Bytes and time of the first call: a resumed operation does not begin with 0 bytes.
        self._first: tuple[int, float] | None = None
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __call__(self, done: int) -> None:
        """Show that `done` bytes are done."""
        self._first = self._first or (done, time.monotonic())
        if self._progress is None and time.monotonic() - self._begin > PATIENCE:
            self._appear()
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, amount=self._amount(done))

    def close(self) -> None:
        """Remove the bar."""
        if self._progress is not None:
            self._progress.stop()

    def _appear(self) -> None:
        from rich.console import Console  # rich takes time, for a long operation alone
        from rich.progress import BarColumn, Progress, TextColumn

        console = Console(file=sys.stderr)
        console.width -= _ECHO
        self._progress = Progress(TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[amount]}"),
                                  console=console, transient=True)
        self._task = self._progress.add_task(self._title, total=self._total, amount="")
        self._progress.start()

    def _amount(self, done: int) -> str:
        """Return `1.5M/3.0M  0.5M/s`."""
        before, begin = self._first or (done, self._begin)
        speed = (done - before) / max(0.001, time.monotonic() - begin)
        total = "" if self._total is None else f"/{show_size(self._total)}"
        return f"{show_size(done)}{total}  {show_size(speed)}/s"


@contextmanager
def bar(title: str, total: int | None = None) -> Iterator[Callable[[int], None] | None]:
    """Yield a bar for a `with` block, or None if standard error is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    shown = Bar(title, total)
    try:
        yield shown
    finally:
        shown.close()
