"""The machine: its slots, the execs on them, and whether the server can do its work."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from local_backend.runtime.cpu_load import CpuLoad
from local_backend.runtime.loop import Loop
from local_backend.runtime.occupancy import SlotPlace
from local_backend.runtime.utilisation import Use, Utilisation
from local_backend.services.access import Caller
from local_backend.services.base import Base, SupervisorCalls
from local_backend.services.readiness import Readiness
from local_backend.store import execs
from local_backend.store.execs import ExecRow
from local_backend.store.states import shown_as


@dataclass
class MachineService:
    """Queries about the machine and the server."""

    base: Base
    supervisor: SupervisorCalls
    readiness: Readiness
    #: The background loops of the server.
    loops: tuple[Loop, ...]
    cpu_load: CpuLoad
    utilisation: Utilisation = field(default_factory=Utilisation)
    started: float = field(default_factory=time.time)
    #: The server is stopping: calls that wait for news answer at once.
    closing: bool = False

    @property
    def uptime(self) -> int:
        """Whole seconds since the server started."""
        return int(time.time() - self.started)

    def places(self) -> list[SlotPlace]:
        """Return the slots with the execs that hold them."""
        return self.supervisor.places()

    def use_of(self, devices: Iterable[str]) -> dict[str, Use]:
        """Return how busy these devices (UUIDs) are."""
        return self.utilisation.of(devices)

    def unfinished(self, caller: Caller) -> list[ExecRow]:
        """Return the execs that the caller sees and that need the supervisor: not terminal, or deleted with files
        left."""
        return [row for row in self.base.database.read(execs.unfinished) if caller.sees(row)]

    def counts(self) -> dict[str, int]:
        """Return the number of all execs by state."""
        return self.base.database.read(execs.counts)

    def shown_counts(self, caller: Caller) -> dict[str, int]:
        """Return the number of the execs that the caller sees, by the state that clients see."""
        found: Counter[str] = Counter()
        for state, count in self.base.database.read(lambda c: execs.counts(c, caller.sees_of)).items():
            found[shown_as(state)] += count
        return dict(found)

    def status(self) -> dict[str, Any]:
        """Return what the supervisor reports about itself."""
        return self.supervisor.status()

    def troubles(self) -> list[str]:
        """Return a sentence for each reason why the server cannot accept and run jobs, none when it is ready."""
        return ["the server is shutting down"] if self.closing else self.readiness.troubles()
