"""The environment variables that this process was started with. Imports the standard library only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

#: For a process that was forked and then given another environment: that one.
_given: dict[str, str] | None = None
#: For systems without /proc.
_at_import = dict(os.environ)


def note(environment: Mapping[str, str]) -> None:
    """Say what a forked process has as its environment from its beginning."""
    global _given
    _given = dict(environment)


def initial() -> dict[str, str]:
    """Return the variables as they were when the process began, before its program changed any."""
    if _given is not None:
        return dict(_given)
    try:
        text = Path("/proc/self/environ").read_bytes()
    except OSError:
        return dict(_at_import)
    pairs = (os.fsdecode(entry).partition("=") for entry in text.split(b"\0") if entry)
    return {name: value for name, _, value in pairs}
