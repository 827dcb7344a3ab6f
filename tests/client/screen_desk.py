"""A client user in front of a terminal: dlicmd runs in a pseudo-terminal, and a test reads the screen as a person."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Sequence

import pexpect
import pyte
from client_desk import DEADLINE, Desk

COLUMNS, ROWS = 80, 24
#: The words that start dlicmd.
DLICMD = (sys.executable, "-c", "import sys; from dlicmd.cli import main; sys.exit(main())")


class Screen:
    """A terminal in which one program runs: dlicmd with these words, or a program of its own."""

    def __init__(
        self, desk: Desk, *words: str, columns: int = COLUMNS, rows: int = ROWS, program: Sequence[str] = DLICMD,
        **environment: str,
    ) -> None:
        kept = {name: value for name, value in desk.environment.items() if name not in ("COLUMNS", "LINES")}
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        #: Everything that the command wrote.
        self.written = b""
        self.process = pexpect.spawn(
            program[0], [*program[1:], *words], cwd=str(desk.folder), dimensions=(rows, columns), timeout=DEADLINE,
            env=kept | {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"} | environment,
        )
        self.process.delaybeforesend = None

    @property
    def lines(self) -> list[str]:
        """The lines of the screen without blanks at their ends, up to the last one that is not empty."""
        return re.sub(r"\n+$", "", "\n".join(line.rstrip() for line in self._screen.display)).split("\n")

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def press(self, keys: str) -> None:
        """Press keys, for example "q" or "\\x1b[B" for the down arrow."""
        self.process.send(keys)

    def resize(self, columns: int, rows: int) -> None:
        """Change the size of the terminal."""
        self._screen.resize(rows, columns)
        self.process.setwinsize(rows, columns)

    def until(self, probe: Callable[[], object] | str) -> None:
        """Read until `probe` is true, or until the screen has this text."""
        is_there = (lambda: probe in self.text) if isinstance(probe, str) else probe
        deadline = time.monotonic() + DEADLINE
        while not is_there():
            try:
                chunk = self.process.read_nonblocking(65536, max(0.0, deadline - time.monotonic()))
            except (pexpect.TIMEOUT, pexpect.EOF) as problem:
                raise AssertionError(f"{type(problem).__name__} before {probe!r}; the screen:\n{self.text}") from None
            self.written += chunk
            self._stream.feed(chunk)

    def ended(self) -> int:
        """Read to the end of the command, and return its exit code; a negative one is that of a signal."""
        while True:
            try:
                chunk = self.process.read_nonblocking(65536, DEADLINE)
            except pexpect.EOF:
                break
            self.written += chunk
            self._stream.feed(chunk)
        self.process.close()
        return -self.process.signalstatus if self.process.signalstatus else self.process.exitstatus
