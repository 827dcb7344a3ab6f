"""Describes in one line why a process failed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from local_backend.files import open_regular
from local_backend.runtime.launcher_log import one_line

_TAIL = 64 * 1024
_TRACEBACK = "Traceback (most recent call last):"
#: How Python begins the message about an exception that did not end the program, such as one of `__del__`.
_IGNORED = "Exception ignored "


def describe(status: int, stderr: Path) -> str:
    """Return one line about a process that ended with `status` (negative: killed by that signal).

    The last line on standard error explains most. In a traceback it is the exception; for `sys.exit("text")` it is
    the text. If the exception has several lines, the first one explains most. Both end with code 1, and a command
    that cannot be started with 126 or 127. The program chose any other code itself, so the line shows it.
    """
    if status < 0:
        return f"killed by signal {-status} ({signal_name(-status)})"
    lines = last_lines(stderr)
    lines = _without_ignored(lines) or lines
    if not lines:
        return f"exit code {status}"
    raised, last = exception(lines), one_line(lines[-1])
    first = (raised or last) if status in (1, 126, 127) else f"exit code {status}"
    return first if first == last else f"{first}; last line on standard error: {last}"


def signal_name(number: int) -> str:
    """Return the name of a signal: SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def exception(lines: list[str]) -> str:
    """Return the first line of the exception of the last traceback; empty if there is none."""
    begins = [number for number, line in enumerate(lines) if line.startswith(_TRACEBACK)]
    after = lines[begins[-1] + 1 :] if begins else []
    return next((one_line(line) for line in after if not line[0].isspace()), "")


def _without_ignored(lines: list[str]) -> list[str]:
    """Return the lines without exceptions that Python has reported and ignored, and without their tracebacks."""
    kept: list[str] = []
    ignored = False
    for line in lines:
        if line.startswith(_IGNORED):
            ignored = True
        elif not ignored:
            kept.append(line)
        elif not line[0].isspace() and line != _TRACEBACK:
            ignored = False  # the line names the exception, and ends the report
    return kept


def last_lines(path: Path) -> list[str]:
    """Return the last non-blank lines of a file; an empty list if it cannot be read."""
    # Follow no link: a program may have replaced its output with a link to another user's secrets.
    file = open_regular(path, path.parent)
    if file is None:
        return []
    try:
        with file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    return [line for line in lines if one_line(line)]
