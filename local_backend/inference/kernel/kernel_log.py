"""The log of a kernel: lines on the standard error, as the kernels of WMLA write them."""

from __future__ import annotations

import os
import sys
from datetime import datetime

DEBUG, INFO, WARN, ERROR = -1, 0, 1, 2
_LETTERS = {DEBUG: "D", INFO: "I", WARN: "W", ERROR: "E"}
_NAMES = {"DEBUG": DEBUG, "INFO": INFO, "WARN": WARN, "WARNING": WARN, "ERROR": ERROR}
#: Lines of a lower level are not written: DEBUG, INFO, WARN or ERROR.
LEVEL_VARIABLE = "DLIM_MK_LOG_LEVEL"


def threshold() -> int:
    """Return the lowest level that is written: that of DLIM_MK_LOG_LEVEL, or INFO."""
    return _NAMES.get(os.environ.get(LEVEL_VARIABLE, "").strip().upper(), INFO)


def log(level: int, message: object) -> None:
    """Write a line `YYYY-mm-dd HH:MM:SS.ffffff: I message` to the standard error, unless its level is too low."""
    if level >= threshold():
        letter = _LETTERS.get(level) or ("E" if level > ERROR else "D")
        sys.stderr.write(f"{datetime.now():%Y-%m-%d %H:%M:%S.%f}: {letter} {message}\n")
        sys.stderr.flush()


def log_warn(message: object) -> None:
    """Write a line of the level WARN."""
    log(WARN, message)


def log_debug(message: object) -> None:
    """Write a line of the level DEBUG."""
    log(DEBUG, message)


def log_info(message: object) -> None:
    """Write a line of the level INFO."""
    log(INFO, message)


def log_error(message: object) -> None:
    """Write a line of the level ERROR."""
    log(ERROR, message)
