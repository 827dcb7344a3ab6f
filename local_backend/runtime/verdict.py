"""Why a process failed, in one line."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from local_backend.files import open_regular
from local_backend.runtime.launcher_log import one_line

_TAIL = 64 * 1024


def describe(status: int, stderr: Path) -> str:
    """One line about a process that ended with `status` (negative: killed by that signal).

    The last line that a failing program wrote to standard error says most: of a traceback it is the exception, and
    of `sys.exit("text")` the text. Both end with code 1, and what cannot be started with 126 or 127; any other code was
    chosen and is told.
    """
    if status < 0:
        return f"killed by signal {-status} ({signal_name(-status)})"
    last = last_line(stderr)
    if not last:
        return f"exit code {status}"
    return last if status in (1, 126, 127) else f"exit code {status}; last line on standard error: {last}"


def signal_name(number: int) -> str:
    """SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def last_line(path: Path) -> str:
    """The last line of a file that is not blank, shortened and free of control characters; empty when there is none."""
    # Not through a link: a program may have put one to somebody's secrets in the place of its output.
    file = open_regular(path, path.parent)
    if file is None:
        return ""
    try:
        with file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((text for line in reversed(lines) if (text := one_line(line))), "")
