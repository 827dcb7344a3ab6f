"""Kills processes that an ended attempt has left."""

from __future__ import annotations

from collections import defaultdict

import psutil

from local_backend.runtime import launcher_log, processes, tree
from local_backend.runtime.launch import read_identity
from local_backend.runtime.paths import ExecPaths

#: Seconds that the first `kill` of an exec waits for the end of the processes.
_PATIENCE = 1.0


class Leftovers:
    """Kills leftovers, and knows those that have not ended yet: a process that is ending may show no environment."""

    def __init__(self) -> None:
        self._killed: defaultdict[str, set[psutil.Process]] = defaultdict(set)

    def kill(self, paths: ExecPaths) -> int:
        """Kill all processes of an exec, and return their number. Raises TimeoutError while any of them lives, for
        example because a device does not answer: call again later. Raises OSError when processes cannot be listed."""
        killed = self._killed[paths.exec_id]
        patience = 0.0 if killed else _PATIENCE
        left = tree.sweep(processes.mark_of(paths.state), read_identity(paths), killed, patience)
        if left:
            raise TimeoutError(f"processes of {paths.exec_id} do not end: {', '.join(map(str, sorted(left)))}")
        del self._killed[paths.exec_id]
        if killed:
            found = f"{len(killed)} leftover process{'es' if len(killed) > 1 else ''}"
            launcher_log.note(paths.launcher_log, "supervisor", f"killed {found}")
        return len(killed)
