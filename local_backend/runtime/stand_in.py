"""The module `dlicmd` for programs whose Python lacks the package, such as that of a conda environment: `dlicmd.log`.

This file is copied, as dlicmd.py, into a folder at the end of PYTHONPATH. That folder still comes before the installed
packages, so the module looks for the package first, and gives way to it. It imports the standard library only.
"""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType


def _package() -> ModuleType | None:
    """Return the installed package `dlicmd`, None if this Python has none."""
    here = os.path.dirname(os.path.abspath(__file__))
    path, own = sys.path[:], sys.modules.pop(__name__)
    sys.path[:] = [entry for entry in path if os.path.abspath(entry) != here]
    try:
        return importlib.import_module(__name__)
    except ModuleNotFoundError as problem:
        if problem.name != __name__:
            raise
        sys.modules[__name__] = own
        return None
    finally:
        sys.path[:] = path


if _package() is None:
    from dlicmd_program_log import log  # type: ignore[import-not-found]  # noqa: F401 - the copy of dlicmd/program_log.py beside this file
