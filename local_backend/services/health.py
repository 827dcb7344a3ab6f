"""The health of the server: what the checks of `local-backend doctor` find, and how its loops do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from local_backend.runtime.loop import Loop
from local_backend.services.access import Caller

OK, WARNING, PROBLEM = "ok", "warning", "problem"
#: Seconds for which findings are not looked for again: some checks take seconds.
_NEW = 10.0


@dataclass(frozen=True)
class Finding:
    """The result of a check. `level` is ok, warning or problem. `do` is the remedy, empty if nothing needs to be
    done."""

    check: str
    level: str
    what: str
    do: str = ""


@dataclass(frozen=True)
class LoopHealth:
    """A background loop of the server: whether it runs, the turns that have failed since the last one without an error,
    the seconds that the present turn has taken, and when the last turn without an error ended (epoch seconds)."""

    name: str
    alive: bool
    failures: int
    busy: float
    turned: float | None


@dataclass
class HealthService:
    """Checks of the server and its machine, for administrators. Safe for use from any thread."""

    examine: Callable[[], Iterable[Finding]]
    loops: tuple[Loop, ...]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _found: list[Finding] = field(default_factory=list)
    _until: float = 0.0

    def findings(self, caller: Caller) -> list[Finding]:
        """Return what the checks find. May take some seconds. Raises Denied."""
        caller.check_admin("check the server")
        with self._lock:
            if time.monotonic() >= self._until:
                self._found = list(self.examine())
                self._until = time.monotonic() + _NEW
            return list(self._found)

    def loop_states(self, caller: Caller) -> list[LoopHealth]:
        """Return the background loops of the server. Raises Denied."""
        caller.check_admin("check the server")
        return [LoopHealth(loop.name, loop.alive, loop.failures, loop.busy, loop.turned) for loop in self.loops]
