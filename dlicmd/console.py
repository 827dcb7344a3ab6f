"""What dlicmd says to people: short lines on standard error. Standard output belongs to results."""

from __future__ import annotations

import os
import re
import sys

LEVELS = ("debug", "info", "warn", "error")

_level = "info"
#: C0 and C1 controls but for tab and newline, and the characters that turn the direction of text.
_CONTROL = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
#: Terminal sequences as a whole: CSI, OSC and other strings, two-character escapes. Only what is complete, in one line
#: and of a form that terminals know: an open one must not take with it what others say behind it.
_ESCAPE = r"(?:\x1b\[|\x9b)[0-?]*[ -/]?[@-~]|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)|\x1b[ -/]?[0-~]"
#: Style → SGR parameters of a terminal.
_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def set_level(level: str) -> None:
    """Say nothing less important than `level`, one of LEVELS."""
    global _level
    _level = level


def is_debug() -> bool:
    """Whether debugging output was asked for."""
    return _level == "debug"


def debug(text: str) -> None:
    """A line for someone who looks for a fault."""
    _say("debug", f"[Debug]: {text}")


def info(text: str) -> None:
    """A line that a user may like to know."""
    _say("info", f"dlicmd: {text}")


def warn(text: str) -> None:
    """A line that a user should know."""
    _say("warn", f"dlicmd: {text}")


def error(text: str) -> None:
    """The line that says why the command failed."""
    _say("error", f"dlicmd: {text}")


def aside(text: str) -> None:
    """Lines as they are, for people, where standard output is kept for something else."""
    print(text, file=sys.stderr, flush=True)


def paint(text: str, style: str) -> str:
    """`text` in one of the styles bold, dim, red, green, yellow, cyan, where people see that; `text` elsewhere.

    That is on a terminal, unless it is a dumb one or NO_COLOR is set. `text` is inert already.
    """
    seen = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if seen and text else text


def _say(level: str, text: str) -> None:
    if LEVELS.index(level) >= LEVELS.index(_level):
        aside(inert(text).replace("\n", " "))


def one_line(text: str) -> str:
    """`text` as `inert` leaves it, in one line."""
    return inert(text).replace("\n", " ").replace("\t", " ")


def inert(text: str) -> str:
    """`text` without anything that a terminal would obey: no escape sequences, no control characters but tab, newline.

    A carriage return, with which programs redraw a progress bar, becomes a newline.
    """
    if text.isprintable():
        return text
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return re.sub(_CONTROL, "", re.sub(_ESCAPE, "", text))
