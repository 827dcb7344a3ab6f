"""The environment variables that this process was started with. Imports the standard library only."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path

#: Variable with the digests of all other variables, for a process that a command line of the user starts.
TOLD = "DLI_TASK_ENVIRONMENT"
#: The environment that a forked process was given; None in other processes.
_given: dict[str, str] | None = None
#: The environment at import, for systems without /proc.
_at_import = dict(os.environ)


def note(environment: Mapping[str, str]) -> None:
    """Set the initial environment of a forked process."""
    global _given
    _given = dict(environment)


def told(environment: Mapping[str, str]) -> str:
    """Return the value of `TOLD` for a process that begins with this environment."""
    return json.dumps({name: _digest(value) for name, value in environment.items()}, separators=(",", ":"))


def changes() -> dict[str, str | None]:
    """Return the variables that the program has set, and None for variables that it has deleted. If the process began
    with the variable `TOLD`, changes by the command line that started the program are included."""
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
