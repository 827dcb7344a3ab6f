"""Tables on a terminal, drawn again every 2 seconds, with scrolling and a filter: slots and jobs, or models."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dlicmd.cli.console import paint
from dlicmd.cli.show import screen
from dlicmd.cli.show.listing import STATE_STYLES
from dlicmd.cli.show.screen import Screen
from dlicmd.cli.show.table import Column, cut, ranked
from dlicmd.cli.show.top import BUSY, CONSUMER, STATE, TopSection, headline, sections
from dlicmd.contract import states
from dlicmd.sdk.errors import Denied, ServerError, Unreachable
from dlicmd.sdk.messages import one_line

#: Seconds between two readings.
EVERY = 2.0
_KEYS = "q quit  / filter  ↑ ↓ PgUp PgDn scroll"
_SLOT_STYLES = {"free": "dim", "used": "green", "leaving": "yellow", "drained": "red"}
_BAR = 10


def _bold(_text: str) -> str:
    return "bold"


def _of_state(text: str) -> str:
    return _SLOT_STYLES.get(text.partition(":")[0], "")


def _of_progress(text: str) -> str:
    return STATE_STYLES.get(text.partition(" ")[0], STATE_STYLES[states.RUNNING])


#: The columns by section. The first column of a section stands for its heading.
_COLUMNS: dict[str, tuple[Column, ...]] = {
    "slot": (Column("slot", style=_bold), Column("kind", 0, 3), Column(STATE, 12, 0, _of_state),
             Column(BUSY, 0, 1, lambda _: "cyan"), Column("job", 16), Column("user", 8, 2), Column(CONSUMER, 12, 4)),
    "running": (Column("running", style=_bold), Column("name", 16), Column("user", 8, 2), Column("slots", 0, 3),
                Column("progress", 34, 0, _of_progress)),
    "waiting": (Column("waiting", style=_bold), Column("name", 16), Column("user", 8, 2), Column("pri", 0, 3),
                Column("slots", 0, 4), Column("not before", 0, 5), Column("why", 34), Column(CONSUMER, 12, 6)),
}


class TopLayout(NamedTuple):
    """What a view shows: its first line, its sections as rows, and the columns of each section by its first one."""

    headline: Callable[[Mapping[str, Any]], str]
    sections: Callable[[Mapping[str, Any]], list[TopSection]]
    columns: Mapping[str, tuple[Column, ...]]


SLOTS = TopLayout(headline, sections, _COLUMNS)


class Top:
    """The state of the view: the last answer of the server, the filter, and the first line that is shown."""

    def __init__(self, view: Mapping[str, Any], layout: TopLayout = SLOTS) -> None:
        self.view, self.trouble = view, ""
        self._layout = layout
        self.filter, self.is_typing = "", False
        self._first = 0
        self._room = 1

    def lines(self, width: int, height: int) -> list[str]:
        """Return at most `height` lines of at most `width` columns."""
        head = [paint(cut(self._layout.headline(self.view), width), "bold")]
        if self.trouble:
            head.append(paint(cut(one_line(self.trouble), width), "red"))
        body = self._body(width)
        self._room = max(1, height - len(head) - 1)
        self._first = max(0, min(self._first, len(body) - self._room))
        shown = body[self._first:self._first + self._room]
        shown += [""] * (height - len(head) - 1 - len(shown))
        return [*head, *shown, paint(cut(self._foot(len(body)), width), "dim")][:height]

    def press(self, key: str) -> bool:
        """Act on a key. Return False if it ends the view."""
        if key == screen.CLOSED:
            return False
        if self.is_typing:
            self._type(key)
            return True
        moves = {screen.UP: -1, screen.DOWN: 1, "k": -1, "j": 1, screen.PAGE_UP: -self._room, "b": -self._room,
                 screen.PAGE_DOWN: self._room, " ": self._room, screen.HOME: -self._first, screen.END: 1 << 30}
        if key in moves:
            self._first = max(0, self._first + moves[key])
        elif key == "/":
            self.is_typing, self.filter = True, ""
        elif key == screen.ESCAPE:
            self.filter = ""
        return key not in ("q", "Q")

    def _type(self, key: str) -> None:
        """Change the filter by a key."""
        if key in (screen.ENTER, screen.ESCAPE):
            self.is_typing = False
            self.filter = "" if key == screen.ESCAPE else self.filter
        elif key == screen.BACKSPACE:
            self.filter = self.filter[:-1]
        elif len(key) == 1 and key.isprintable():
            self.filter += key
        self._first = 0

    def _body(self, width: int) -> list[str]:
        """Return the tables of all sections that have rows."""
        found: list[str] = []
        wanted = self.filter.lower()
        for section in self._layout.sections(self.view):
            rows = [{**row, BUSY: _load(row.get(BUSY, ""))} for row in section.rows
                    if wanted in " ".join(row.values()).lower()]
            if rows:
                if section.columns[0] == "waiting" and len({row[CONSUMER] for row in rows}) == 1:
                    rows = [{**row, CONSUMER: ""} for row in rows]  # it tells no job from another
                found += ["", *ranked(rows, self._layout.columns[section.columns[0]], width)]
        return found[1:] or ([f"nothing contains '{one_line(self.filter)}'"] if wanted else [])

    def _foot(self, count: int) -> str:
        if self.is_typing:
            return f"filter: {self.filter}_   Enter keeps it, Esc removes it"
        end = min(count, self._first + self._room)
        place = f"  lines {self._first + 1}-{end} of {count}" if count > self._room else ""
        return _KEYS + place + (f"  filter: {self.filter} (Esc removes it)" if self.filter else "")


def watch(
    view: Mapping[str, Any], read: Callable[[], Mapping[str, Any]], layout: TopLayout = SLOTS,
) -> None:
    """Show a view, that of `read` after the first one, until `q` or Ctrl-C. Then restore the terminal.

    A server that does not answer is tried again. Raises Denied.
    """
    top = Top(view, layout)
    with Screen() as shown:
        reader = _TopReader(read, shown)
        reader.start()
        try:
            while True:
                reader.update(top)
                shown.draw(top.lines(*shown.size))
                if not all(top.press(key) for key in shown.pressed()):
                    return
        except KeyboardInterrupt:
            return
        finally:
            reader.stop()


class _TopReader(threading.Thread):
    """Reads the view again and again, so that a slow server does not delay keys."""

    def __init__(self, read: Callable[[], Mapping[str, Any]], shown: Screen) -> None:
        super().__init__(name="top", daemon=True)
        self._read, self._shown = read, shown
        self._stopped, self._lock = threading.Event(), threading.Lock()
        self._view: Mapping[str, Any] | None = None
        self._problem: Exception | None = None

    def update(self, top: Top) -> None:
        """Give the view what was read since the last call. Raises errors that no later reading can cure."""
        view, problem = self._view, self._problem
        if isinstance(problem, ServerError | Unreachable) and not isinstance(problem, Denied):
            top.trouble = f"trying again: {problem}"
        elif problem is not None:
            raise problem
        else:
            top.trouble = ""
        top.view = top.view if view is None else view

    def stop(self) -> None:
        """End the reading. A reading in progress does not wake the screen any more."""
        with self._lock:
            self._stopped.set()

    def run(self) -> None:
        while not self._stopped.wait(EVERY):
            try:
                self._view, self._problem = self._read(), None
            except Exception as problem:  # the main thread shows or raises it
                self._problem = problem
            with self._lock:
                if not self._stopped.is_set():
                    self._shown.wake()


def _load(text: str) -> str:
    """Return `██████▌     67%` for `67%`."""
    return f"{_bar(int(text.rstrip('%')) / 100)} {text:>4}" if text else ""


def _bar(share: float) -> str:
    """Return `██████▌   `: a share of so many columns, exact to an eighth of a column."""
    eighths = round(share * _BAR * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (" ▏▎▍▌▋▊▉"[rest] if rest else "")).ljust(_BAR)
