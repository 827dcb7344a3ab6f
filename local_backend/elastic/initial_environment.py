"""The environment variables that this process was started with. Imports the standard library only."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path

#: Variable with the digests of the others, for a process that a command line of the user starts.
TOLD = "DLI_TASK_ENVIRONMENT"
#: For a process that was forked and then given another environment: that one.
_given: dict[str, str] | None = None
#: For systems without /proc.
_at_import = dict(os.environ)


def note(environment: Mapping[str, str]) -> None:
    """Say what a forked process has as its environment from its beginning."""
    global _given
    _given = dict(environment)


def told(environment: Mapping[str, str]) -> str:
    """Return the value of `TOLD` for a process that begins with this environment."""
    return json.dumps({name: _digest(value) for name, value in environment.items()}, separators=(",", ":"))


def changes() -> dict[str, str | None]:
    """Return the variables that the program has set, and None for those that it has deleted; by a command line that
    started it, too, where the process was told its beginnings by `TOLD`."""
    now = dict(os.environ)
    text = now.pop(TOLD, None)
    before = json.loads(text) if text else {name: _digest(value) for name, value in initial().items()}
    changed: dict[str, str | None] = {name: value for name, value in now.items() if before.get(name) != _digest(value)}
    return changed | dict.fromkeys(before.keys() - now.keys())


def _digest(value: str) -> int:
    return zlib.crc32(os.fsencode(value))


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
