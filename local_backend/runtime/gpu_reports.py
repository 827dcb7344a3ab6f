"""Tells runners how busy the GPUs of their jobs are. A runner cannot ask by itself: the library of the GPUs starts
threads, and a runner must have none, because it forks workers."""

from __future__ import annotations

import time
from collections.abc import Iterable
from weakref import WeakSet

from local_backend.runtime.local_run import LocalRun
from local_backend.runtime.utilisation import Utilisation
from local_backend.scheduler.model import Slot

#: Seconds between two reports, and seconds from the beginning of a reading to its report.
_EVERY, _READING = 10.0, 1.0


class GpuReports:
    """Reads the GPUs of running jobs, and reports to their runners. Only one thread calls the methods, and none waits
    for a GPU."""

    def __init__(self, slots: Iterable[Slot], utilisation: Utilisation | None = None) -> None:
        self._devices = {slot.id: slot.device for slot in slots if slot.device}
        self._utilisation = utilisation or Utilisation()
        self._runs: WeakSet[LocalRun] = WeakSet()
        self._begun = False
        #: When `tick` is due (monotonic); None if it is not.
        self.due: float | None = None

    def follow(self, run: LocalRun) -> LocalRun:
        """Report to a run until it ends; on a machine without GPUs, never. Return the run."""
        if self._devices:
            self._runs.add(run)
            self.due = self.due or time.monotonic() + _EVERY
        return run

    def tick(self) -> None:
        """Begin a reading, or report it, if this is due."""
        now = time.monotonic()
        if self.due is None or now < self.due:
            return
        for run in [one for one in self._runs if one.ended]:
            self._runs.discard(run)
        used = {run: {slot: self._devices[slot] for slot in run.held.held if slot in self._devices}
                for run in self._runs if run.held is not None}
        if self._begun:
            found = self._utilisation.latest
            for run, slots in used.items():
                uses = {slot: found[device] for slot, device in slots.items() if device in found}
                if uses:
                    run.report(uses)
        elif devices := {device for slots in used.values() for device in slots.values()}:
            self._utilisation.begin(devices)
            self._begun, self.due = True, now + _READING
            return
        self._begun = False
        self.due = now + _EVERY - _READING if self._runs else None
