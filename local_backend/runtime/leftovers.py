"""Kills processes that an ended attempt has left."""

from __future__ import annotations

from local_backend.runtime import launcher_log, processes, tree
from local_backend.runtime.launch import read_identity
from local_backend.runtime.paths import ExecPaths


def kill(paths: ExecPaths) -> None:
    """Kill all processes of an exec."""
    count = tree.sweep(processes.mark_of(paths.state), read_identity(paths))
    if count:
        found = f"{count} leftover process{'es' if count > 1 else ''}"
        launcher_log.note(paths.launcher_log, "supervisor", f"killed {found}")
