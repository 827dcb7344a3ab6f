"""Output of the commands that is not a result: errors, lines beside a result, and styles of a terminal."""

from __future__ import annotations

import json
import os
import sys

from dlicmd.sdk.messages import inert, program, say

_json_errors = False
_errors_shown = True
_has_prefix = True
#: Style → SGR parameters of a terminal.
_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "magenta": "35",
           "cyan": "36"}


def set_json_errors(wanted: bool) -> None:
    """Print errors as JSON objects, for programs that read the output of `-o json`."""
    global _json_errors
    _json_errors = wanted


def set_errors(*, shown: bool) -> None:
    """Print errors, or do not print them because the command says in its output that it failed."""
    global _errors_shown
    _errors_shown = shown


def set_prefix(*, shown: bool) -> None:
    """Begin the line about an error with the name of the program, or not."""
    global _has_prefix
    _has_prefix = shown


def error(text: str, code: str = "client.failed", status: int = 1) -> None:
    """Print the line that says why the command failed. `code`: see contract.error_codes; `status`: the exit code."""
    if not _errors_shown:
        return
    if not _json_errors:
        say("error", f"{program()}: {text}" if _has_prefix else text)
        return
    found = {"error": {"code": code, "message": inert(text), "exitCode": int(status)}}
    print(json.dumps(found), file=sys.stderr, flush=True)


def aside(text: str) -> None:
    """Print lines unchanged on standard error, for people, when standard output is for something else."""
    print(text, file=sys.stderr, flush=True)


def paint(text: str, style: str) -> str:
    """Return `text` in one of the styles bold, dim, red, green, yellow, blue, magenta, cyan if the output shows styles,
    else `text`. `text` must be inert already."""
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if text and has_styles() else text


def has_styles() -> bool:
    """Return whether the output shows styles: on a terminal, unless TERM is dumb or NO_COLOR is set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
