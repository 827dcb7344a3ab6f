"""Messages for people: short lines on standard error, and the interface of progress bars."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeAlias

#: Title and size in bytes (None: unknown) of an operation → a context that yields a function for the number of bytes
#: done, or None.
Progress: TypeAlias = Callable[[str, "int | None"], AbstractContextManager["Callable[[int], None] | None"]]
LEVELS = ("debug", "info", "warn", "error")

_level = "info"
#: The name of the program before each message.
_program = "dlicmd"
#: C0 and C1 controls except tab and newline, the characters that change the direction of text, and those that have no
#: width, except the joiners that scripts and emoji need.
_CONTROL = (
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]"
)
#: Whole terminal sequences: CSI, OSC and other strings, two-character escapes. Each must be complete, in one line and
#: of a known form. An open sequence must not remove the text of others after it.
_ESCAPE = r"(?:\x1b\[|\x9b)[0-?]*[ -/]?[@-~]|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)|\x1b[ -/]?[0-~]"

#: Commands in a message: after a colon, and one after the other. The last one ends before punctuation and a blank. A
#: dot after a blank is a folder.
_COMMANDS = (
    r"(?<=:)(?<!^dlicmd:)(?<!^dlim:) +(dli(?:cmd|m) (?:\.\.\.|(?<= )\.|[^;.?]|[;.?](?! |$)|; (?=dli(?:cmd|m) ))+)"
    r"(?:[;.?](?= |$))?"
)
_INDENT = "  "


def set_level(level: str) -> None:
    """Suppress messages less important than `level`, one of LEVELS."""
    global _level
    _level = level


def set_program(name: str) -> None:
    """Begin each message with the name of the program: `dlicmd` or `dlim`."""
    global _program
    _program = name


def program() -> str:
    """Return the name of the program."""
    return _program


def is_debug() -> bool:
    """Return whether debugging output is on."""
    return _level == "debug"


def debug(text: str) -> None:
    """Print a line that helps to find a fault."""
    say("debug", f"[Debug]: {text}")


def info(text: str) -> None:
    """Print a line that may interest the user."""
    say("info", f"{_program}: {text}")


def warn(text: str) -> None:
    """Print a line that the user should know."""
    say("warn", f"{_program}: {text}")


def say(level: str, text: str) -> None:
    """Print `text` on standard error, if `level` is important enough: in one line, on a terminal as `fitted` does."""
    if LEVELS.index(level) >= LEVELS.index(_level):
        line = inert(text).replace("\n", " ")
        print(fitted(line, _width()), file=sys.stderr, flush=True)


def _width() -> int:
    """Return the width of the terminal that standard error is, or 0 if it is none."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError, AttributeError):  # a file, a closed stream, an object of a notebook
        return 0


def fitted(line: str, width: int) -> str:
    """Return a line broken between words, so that each part has at most `width` characters. 0: return it unbroken.

    A longer word, such as a path, stays whole. Commands that follow a colon get lines of their own, without the
    punctuation after them, so that they can be copied.
    """
    if not width or len(line) <= width:
        return line
    import textwrap  # only for long lines

    parts: list[str] = []
    for number, piece in enumerate(re.split(_COMMANDS, line)):
        if number % 2:
            parts += [f"{_INDENT}{command}" for command in re.split("; (?=dli(?:cmd|m) )", piece)]
        else:
            parts += textwrap.wrap(
                piece.strip(), width, initial_indent=_INDENT if number else "", subsequent_indent=_INDENT,
                break_long_words=False, break_on_hyphens=False)
    return "\n".join(parts)


def one_line(text: str) -> str:
    """Return `text` as `inert` returns it, in one line."""
    return inert(text).replace("\n", " ").replace("\t", " ")


def inert(text: str) -> str:
    """Return `text` without anything that a terminal would obey: escape sequences, and control characters except tab
    and newline.

    A carriage return becomes a newline. Programs use it to redraw a progress bar.
    """
    if text.isprintable():
        return text
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return re.sub(_CONTROL, "", re.sub(_ESCAPE, "", text))


def file_count(count: int) -> str:
    """Return `1 file`, or `1,200 files`."""
    return f"{count:,} file{'' if count == 1 else 's'}"


@contextmanager
def silent(_title: str, _total: int | None = None) -> Iterator[Callable[[int], None] | None]:
    """Show no progress."""
    yield None
