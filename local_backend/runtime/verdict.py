"""Why a process failed, in one line."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from local_backend.files import open_regular
from local_backend.runtime.launcher_log import one_line

_TAIL = 64 * 1024
_TRACEBACK = "Traceback (most recent call last):"


def describe(status: int, stderr: Path) -> str:
    """One line about a process that ended with `status` (negative: killed by that signal).

    The last line that a failing program wrote to standard error says most: of a traceback it is the exception, and
    of `sys.exit("text")` the text. Of an exception of several lines the first says most. Both end with code 1, and what
    cannot be started with 126 or 127; any other code was chosen and is told.
    """
    if status < 0:
        return f"killed by signal {-status} ({signal_name(-status)})"
    lines = last_lines(stderr)
    if not lines:
        return f"exit code {status}"
    raised, last = exception(lines), one_line(lines[-1])
    first = (raised or last) if status in (1, 126, 127) else f"exit code {status}"
    return first if first == last else f"{first}; last line on standard error: {last}"


def signal_name(number: int) -> str:
    """SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def exception(lines: list[str]) -> str:
    """The first line of the exception of the last traceback, empty when there is none."""
    begins = [number for number, line in enumerate(lines) if line.startswith(_TRACEBACK)]
    after = lines[begins[-1] + 1 :] if begins else []
    return next((one_line(line) for line in after if not line[0].isspace()), "")


def last_lines(path: Path) -> list[str]:
    """The last lines of a file that show anything; none when it cannot be read."""
    # Not through a link: a program may have put one to somebody's secrets in the place of its output.
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
