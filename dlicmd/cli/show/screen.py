"""The whole terminal for one view: an alternate screen, and keys as they are pressed.

The terminal is as before when the view ends, also through an error or a signal, and while the process is suspended.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any

UP, DOWN, PAGE_UP, PAGE_DOWN, HOME, END = "up", "down", "page up", "page down", "home", "end"
ENTER, ESCAPE, BACKSPACE, CLOSED = "enter", "escape", "backspace", "closed"
_SEQUENCES = {
    "\x1b[A": UP, "\x1bOA": UP, "\x1b[B": DOWN, "\x1bOB": DOWN, "\x1b[5~": PAGE_UP, "\x1b[6~": PAGE_DOWN,
    "\x1b[H": HOME, "\x1bOH": HOME, "\x1b[1~": HOME, "\x1b[F": END, "\x1bOF": END, "\x1b[4~": END,
    "\r": ENTER, "\n": ENTER, "\x1b": ESCAPE, "\x7f": BACKSPACE, "\b": BACKSPACE,
}
#: One key: an escape sequence, or one character.
_KEY = re.compile(r"\x1b(?:\[[0-9;]*[A-Za-z~]|O[A-Za-z])|.", re.DOTALL)
#: Alternate screen without cursor, and back.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_ENDING = (signal.SIGTERM, signal.SIGHUP)


class Screen:
    """A context in which this process has the terminal of standard output. Use it in the main thread."""

    def __init__(self) -> None:
        #: Without a terminal as standard input there are no keys.
        self._input = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._modes: list[Any] | None = None
        self._handlers: dict[int, Any] = {}
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._waker, False)
        self._former_waker = -1
        self._shall_suspend = False

    def __enter__(self) -> Screen:
        try:
            for number in _ENDING:
                self._handlers[number] = signal.signal(number, _end)
            self._handlers[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._suspend_soon)
            self._handlers[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, lambda *_: None)
            self._former_waker = signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
            self._take()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._give_back()
        signal.set_wakeup_fd(self._former_waker)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._woken)
        os.close(self._waker)

    @property
    def size(self) -> tuple[int, int]:
        """The number of columns and lines."""
        try:
            found = os.get_terminal_size(sys.stdout.fileno())
        except OSError:
            found = shutil.get_terminal_size()
        # Some terminals do not know their size.
        return (found if found.columns and found.lines else shutil.get_terminal_size())[:2]

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines, which must fit the size, in place of the present ones."""
        sys.stdout.write("\x1b[H" + "\r\n".join(f"{line}\x1b[K" for line in lines) + "\x1b[J")
        sys.stdout.flush()

    def wake(self) -> None:
        """End a wait for keys. Call from any thread."""
        try:
            os.write(self._waker, b"\0")
        except BlockingIOError:
            return  # it is awake already

    def pressed(self) -> list[str]:
        """Wait for keys, for `wake`, or for a change of the size. Return the pressed keys: characters, or names such
        as UP. CLOSED: the terminal is gone."""
        inputs = [self._woken] if self._input is None else [self._woken, self._input]
        ready, _, _ = select.select(inputs, [], [])
        if self._woken in ready:
            os.read(self._woken, 4096)
        if self._shall_suspend:
            self._suspend()
            return []
        if self._input is None or self._input not in ready:
            return []
        try:
            typed = os.read(self._input, 4096).decode("utf-8", "ignore")
        except OSError:
            typed = ""
        return [_SEQUENCES.get(key, key) for key in _KEY.findall(typed)] if typed else [CLOSED]

    def _take(self) -> None:
        if self._input is not None:
            self._modes = termios.tcgetattr(self._input)
            tty.setcbreak(self._input)
        sys.stdout.write(_ENTER)
        sys.stdout.flush()

    def _give_back(self) -> None:
        try:
            sys.stdout.write(_LEAVE)
            sys.stdout.flush()
        except OSError:
            pass  # the terminal is gone
        if self._input is not None and self._modes is not None:
            try:
                termios.tcsetattr(self._input, termios.TCSADRAIN, self._modes)
            except termios.error:
                pass  # the terminal is gone

    def _suspend_soon(self, _number: int, _frame: FrameType | None) -> None:
        """End the wait of `pressed`, which suspends. A handler that writes could interrupt a write of `draw`."""
        self._shall_suspend = True

    def _suspend(self) -> None:
        """Give the terminal back, stop until the shell continues this process, and take the terminal again."""
        self._shall_suspend = False
        self._give_back()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._suspend_soon)
        self._take()


def _end(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
