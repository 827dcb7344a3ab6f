"""How dlicmd was called, which decides the layout of its output, its streams and its exit codes.

Scripts written for the original client call it by its file name, `dlicmd.py`.
"""

from __future__ import annotations

import os
import sys
from enum import Enum
from pathlib import PurePath

#: The file name of the original client.
FILE_NAME = "dlicmd.py"
VARIABLE, ORIGINAL_CLIENT = "DLICMD_COMPAT", "wmla"


class Manner(Enum):
    """The ways to call dlicmd."""

    #: As `dlicmd.py`, or with DLICMD_COMPAT=wmla: layout, streams, exit codes and abbreviations of the original.
    ORIGINAL = "original"
    #: As `dlicmd`, with standard output into a file or pipe: layout of the original; our streams and exit codes.
    PIPED = "piped"
    #: As `dlicmd` on a terminal: our layout.
    TERMINAL = "terminal"


def of_this_process() -> Manner:
    """Return how this process was called."""
    if os.environ.get(VARIABLE) == ORIGINAL_CLIENT or PurePath(sys.argv[0]).name == FILE_NAME:
        return Manner.ORIGINAL
    return of_the_output()


def of_the_output() -> Manner:
    """Return the manner of `dlicmd` with this standard output."""
    return Manner.TERMINAL if sys.stdout.isatty() else Manner.PIPED
