"""Messages of dlicmd for people: short lines on standard error. Standard output is for results."""

from __future__ import annotations

import os
import re
import sys

LEVELS = ("debug", "info", "warn", "error")

_level = "info"
_json_errors = False
#: C0 and C1 controls except tab and newline, and the characters that change the direction of text.
_CONTROL = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
#: Whole terminal sequences: CSI, OSC and other strings, two-character escapes. Each must be complete, in one line and
#: of a known form. An open sequence must not remove the text of others after it.
_ESCAPE = r"(?:\x1b\[|\x9b)[0-?]*[ -/]?[@-~]|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)|\x1b[ -/]?[0-~]"
#: Style → SGR parameters of a terminal.
_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def set_level(level: str) -> None:
    """Suppress messages less important than `level`, one of LEVELS."""
    global _level
    _level = level


def set_json_errors(wanted: bool) -> None:
    """Print errors as JSON objects, for programs that read the output of `-o json`."""
    global _json_errors
    _json_errors = wanted


def is_debug() -> bool:
    """Return whether debugging output is on."""
    return _level == "debug"


def debug(text: str) -> None:
    """Print a line that helps to find a fault."""
    _say("debug", f"[Debug]: {text}")


def info(text: str) -> None:
    """Print a line that may interest the user."""
    _say("info", f"dlicmd: {text}")


def warn(text: str) -> None:
    """Print a line that the user should know."""
    _say("warn", f"dlicmd: {text}")


def error(text: str, code: str = "client.failed", status: int = 1) -> None:
    """Print the line that says why the command failed. `code`: see contract.error_codes; `status`: the exit code."""
    if not _json_errors:
        _say("error", f"dlicmd: {text}")
        return
    import json  # the command has imported it already

    found = {"error": {"code": code, "message": inert(text), "exitCode": int(status)}}
    print(json.dumps(found), file=sys.stderr, flush=True)


def aside(text: str) -> None:
    """Print lines unchanged on standard error, for people, when standard output is for something else."""
    print(text, file=sys.stderr, flush=True)


def paint(text: str, style: str) -> str:
    """Return `text` in one of the styles bold, dim, red, green, yellow, cyan if the output shows styles, else `text`.

    The output shows styles on a terminal, unless TERM is dumb or NO_COLOR is set. `text` must be inert already.
    """
    seen = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if seen and text else text


def _say(level: str, text: str) -> None:
    if LEVELS.index(level) >= LEVELS.index(_level):
        aside(inert(text).replace("\n", " "))


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
