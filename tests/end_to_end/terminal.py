"""A terminal of 80 x 24 characters with a shell in it: a test types lines, and reads the screen as a person does."""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pexpect
import pyte
from user import DEADLINE

COLUMNS, ROWS = 80, 24
#: The shell's prompt: the exit code of the last command, and a sign that no command prints.
PROMPT = re.compile(r"^(\d+)❯ ?$")


class Shown(NamedTuple):
    """What a command printed: its exit code, its lines, and the rows of the screen that they take."""

    code: int
    lines: list[str]
    rows: list[str]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def command(self, start: str) -> str:
        """Return the first printed command that begins with `start`, for example "dlicmd result"."""
        found = re.findall(rf"(?<![\w-]){re.escape(start)}(?=\s|$)[^\n]*", self.text)
        assert found, f"no command {start!r} on the screen:\n{self.text}"
        return re.split(r"\s{2,}|[`'\"]?[,;)]|[`.]?$", found[0])[0]


class _Screen(pyte.HistoryScreen):
    """A screen with a scrollback, and with the alternate screen of full-screen programs."""

    def __init__(self) -> None:
        super().__init__(COLUMNS, ROWS, history=100_000, ratio=0.5)
        self.full = False
        #: Rows, counted from the start, whose line continues in the next row.
        self.wrapped: set[int] = set()
        self._drawing = False
        self._answer: Callable[[str], object] = lambda text: None

    def connect(self, answer: Callable[[str], object]) -> None:
        """Send answers of the terminal, such as the place of the cursor, to the program."""
        self._answer = answer

    @property
    def row(self) -> int:
        """Return the row of the cursor, counted from the start."""
        return len(self.history.top) + self.cursor.y

    def draw(self, data: str) -> None:
        self._drawing = True
        super().draw(data)
        self._drawing = False

    def linefeed(self) -> None:
        (self.wrapped.add if self._drawing else self.wrapped.discard)(self.row)
        super().linefeed()

    def write_process_input(self, data: str) -> None:
        self._answer(data)

    def set_mode(self, *modes: int, **kwargs: bool) -> None:
        if kwargs.get("private") and 1049 in modes and not self.full:
            self.full = True
            self._below = copy.deepcopy(self.buffer), copy.copy(self.cursor)
            self.erase_in_display(2)
        super().set_mode(*modes, **kwargs)

    def reset_mode(self, *modes: int, **kwargs: bool) -> None:
        super().reset_mode(*modes, **kwargs)
        if kwargs.get("private") and 1049 in modes and self.full:
            self.full = False
            self.buffer, self.cursor = self._below
            self.dirty.update(range(ROWS))

    def rows(self) -> list[str]:
        """Return the rows of the scrollback and of the screen."""
        gone = ("".join(line[column].data for column in range(COLUMNS)) for line in self.history.top)
        return [*gone, *self.display]


class Terminal:
    """A shell in a terminal. Rows of the scrollback and of the screen are counted from the start of the shell."""

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        self._screen = _Screen()
        self._stream = pyte.ByteStream(self._screen)
        left_out = ("COLUMNS", "LINES", "NO_COLOR", "CI", "TERM_PROGRAM", "PROMPT_COMMAND")
        self._shell = pexpect.spawn(
            "bash", ["--norc", "--noprofile", "-i"], cwd=str(folder), dimensions=(ROWS, COLUMNS), timeout=DEADLINE,
            env={name: value for name, value in environment.items() if name not in left_out} | {
                "TERM": "xterm-256color", "PS1": r"$?❯ ", "LC_ALL": "C.UTF-8", "HISTFILE": "",
                "BASH_SILENCE_DEPRECATION_WARNING": "1"},
        )
        self._shell.delaybeforesend = None
        self._screen.connect(self._shell.send)
        self._began = 0
        self.until(self._prompted, "a prompt")

    def close(self) -> None:
        """End the shell and what runs in it."""
        self._shell.close(force=True)

    @property
    def screen(self) -> list[str]:
        """Return the 24 rows that a person sees now, without blanks at their ends."""
        return [row.rstrip() for row in self._screen.display]

    @property
    def rows(self) -> list[str]:
        """Return all rows since the last typed line, also those that have left the screen."""
        return [row.rstrip() for row in self._screen.rows()[self._began:]]

    @property
    def lines(self) -> list[str]:
        """Return the lines since the last typed line; a line that is wider than the screen took several rows."""
        found: list[str] = []
        for number, row in enumerate(self._screen.rows()[self._began:], self._began):
            if found and number - 1 in self._screen.wrapped:
                found[-1] += row
            else:
                found.append(row)
        found = [line.rstrip() for line in found]
        while found and not found[-1]:
            found.pop()
        return found

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def type(self, line: str) -> None:
        """Type a line and press Enter."""
        self._began = self._screen.row
        self._shell.send(f"{line}\r")

    def press(self, keys: str) -> None:
        """Press keys. "\x03" is Ctrl-C."""
        self._shell.send(keys)

    def until(self, probe: Callable[[], object] | str, what: str = "") -> None:
        """Read what the programs print until `probe` is true, or until the text since the last typed line has `probe`.

        Raises AssertionError with the screen if that does not happen within DEADLINE seconds.
        """
        true = (lambda: probe in self.text) if isinstance(probe, str) else probe
        deadline = time.monotonic() + DEADLINE
        while not true():
            try:
                self._stream.feed(self._shell.read_nonblocking(65536, timeout=max(0.0, deadline - time.monotonic())))
            except (pexpect.TIMEOUT, pexpect.EOF) as problem:
                screen = "\n".join(f"|{row:<{COLUMNS}}|" for row in self.screen)
                name = type(problem).__name__
                raise AssertionError(f"{name} before {what or probe!r}; the screen:\n{screen}") from None

    def ended(self) -> Shown:
        """Wait until the command has ended and the shell prompts again, and return what the command printed."""
        self.until(lambda: len(self.lines) > 1 and self._prompted(), "the end of the command")
        *lines, prompt = self.lines
        code = PROMPT.match(prompt)
        assert code is not None
        return Shown(int(code[1]), lines[1:], self.rows[1:self.rows.index(prompt)])

    def run(self, line: str) -> Shown:
        """Type a line, and return what the command printed when it has ended."""
        self.type(line)
        return self.ended()

    def _prompted(self) -> bool:
        lines = self.lines
        return bool(lines) and PROMPT.match(lines[-1]) is not None
