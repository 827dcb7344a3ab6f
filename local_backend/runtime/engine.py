"""The runner's tasks for an elastic program: allocation, workers on demand, ended workers (docs/processes.md)."""

from __future__ import annotations

import re
import signal
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from dlicmd.contract import wire
from local_backend.curves.model import OF_RUN
from local_backend.runtime import tree
from local_backend.runtime.channel import Channel
from local_backend.runtime.launch import Launch
from local_backend.runtime.launcher import Held
from local_backend.runtime.progress import Progress
from local_backend.runtime.tasks import Planner, TaskPlan
from local_backend.runtime.workers import Workers, started
from local_backend.scheduler.model import Allocation

_MOST_WORKERS = 100_000


class Engine:
    """The driver and the workers of an elastic job: the channel to the driver, and the slots of the workers."""

    def __init__(
        self, launch: Launch, planner: Planner, *, start: Callable[[TaskPlan], int], progress: Progress,
        note: Callable[[str], None], metrics: Callable[[float, Mapping[str, Any]], None], settle: Callable[[], None],
    ) -> None:
        """`metrics` receives a step, and the metrics that the engine knows for it. `settle` brings all curves so far to
        the disk."""
        self.workers = Workers()
        self.channel: Channel | None = None
        #: Highest step that the driver ever reported; -1 before its first report.
        self.furthest = -1.0
        self._launch = launch
        self.planner = planner
        self._start = start
        self._progress = progress
        self._note = note
        self._metrics = metrics
        self._settle = settle
        self._allocation = Allocation(launch.slots, rest=launch.rest)
        #: Finished epochs after which the job rests now, and whether its state is on the disk; None: it does not rest.
        self._rested: tuple[int, bool] | None = None
        self._highest = max(started(launch.paths), default=0)
        self._greeted = False
        self._counted_by_driver = False
        #: The driver was killed, and its successor has not sent progress yet.
        self._restarted = False
        #: The driver reports that it is recovering.
        self._recovering = False
        #: Number of workers that the driver can use; None before the driver reports it.
        self._usable: int | None = None
        #: Workers whose slots were taken → when they are killed if they have not ended.
        self._leaving: dict[int, float] = {}

    # --- the channel

    def connect(self) -> int:
        """Create a channel for a driver that is about to start; return the driver's end."""
        ours, theirs = socket.socketpair()
        self.channel = Channel(ours.detach())
        self._greeted = self._counted_by_driver = False
        self._progress.update({wire.WORKERS: len(self.workers)})
        return theirs.detach()

    def disconnect(self) -> None:
        """Close the channel of an ended driver. Record its last progress messages, but ignore its requests."""
        if self.channel is None:
            return
        for message in self.channel.receive():
            if message.get("op") in ("progress", "metrics", "history"):
                self._handle(message)
        self.channel.close()

    @property
    def trained(self) -> bool:
        """Whether a training of FabricModel has begun in the job."""
        return self._greeted or self.furthest >= 0

    def on_ready(self) -> None:
        """Handle the messages of the driver, and send queued messages."""
        if self.channel is not None:
            for message in self.channel.receive():
                self._handle(message)
            self.channel.flush()

    def recover(self, why: str) -> None:
        """Note that the driver is being restarted; `why` becomes the message of the progress."""
        self._restarted, self._recovering = True, False
        self._progress.update({wire.MESSAGE: why})

    def _send(self, message: Mapping[str, Any]) -> None:
        if self.channel is not None:
            self.channel.send(dict(message))

    def _handle(self, message: dict[str, Any]) -> None:
        """Execute the request in a message; log and ignore an invalid message."""
        match message:
            case {"op": "hello"}:
                self._greeted = True
                self._tell_allocation()
            case {"op": "spawn", "worker": int(worker), "slot": str(slot), "address": str(address), "key": str(key)}:
                self._spawn(worker, slot, address, key)
            case {"op": "kill", "worker": int(worker)}:
                pid = self.workers.pid(worker)
                if pid is not None:
                    tree.signal_group(pid, signal.SIGKILL)
            case {"op": "progress"}:
                self._take_progress({name: value for name, value in message.items() if name != "op"})
            case {"op": "metrics", "step": int(step), "values": dict(values)}:
                self._metrics(step, values)
            case {"op": "history", "text": str(text)}:
                self._note(text)
            case {"op": "rested", "epochs": int(epochs), "stored": bool(stored)}:
                self._rest(epochs, stored)
            case _:
                self._note(f"ignored an unknown message of the program: {str(message)[:200]}")

    def _take_progress(self, values: dict[str, Any]) -> None:
        """Store the driver's progress values. Whether the driver is recovering is part of the exec's state, so that
        value is part of `held`."""
        self._recovering = values.pop(wire.RECOVERING, self._recovering) is True
        if self._restarted:
            self._restarted = False
            values.setdefault(wire.MESSAGE, None)
        usable = values.pop(wire.USABLE, None)
        if isinstance(usable, int) and usable > 0:
            self._usable = usable
        step = values.get(wire.STEP)
        if isinstance(step, int | float):
            self.furthest = max(self.furthest, step)
        self._counted_by_driver |= wire.WORKERS in values
        self._progress.update(values)
        at = self._progress.values.get(wire.STEP)
        if at is not None and any(name in values for name in OF_RUN):
            found = {name: self._progress.values.get(name) for name in OF_RUN}
            self._metrics(at, {name: value for name, value in found.items() if value is not None})

    def _rest(self, epochs: int, stored: bool) -> None:
        """Note that the job rests, unless it was promoted meanwhile."""
        rest = self._allocation.rest
        if rest is not None and rest <= epochs:
            if self._rested is None or self._rested[0] != epochs:
                self._settle()
            self._rested = epochs, stored

    def may_end(self, sequence: int) -> int | None:
        """Return the finished epochs after which the job rests, if its processes are not needed, and if the server knew
        the present allocation. Otherwise return None."""
        ready = not self._allocation.slots and not self.workers.held and sequence == self._allocation.sequence
        return self._rested[0] if self._rested is not None and self._rested[1] and ready else None

    # --- slots

    def reallocate(self, found: Allocation) -> None:
        """Act on an allocation that the server sent, and pass it on to the driver. Ignore one that is not newer."""
        if found.sequence <= self._allocation.sequence:
            return
        before, self._allocation = self._allocation, found
        if self._rested is not None and (found.rest is None or found.rest > self._rested[0]):
            self._rested = None
        if found.rest != before.rest:
            self._note("the job now trains to its end" if found.rest is None else
                       f"the job now trains until it has finished epoch {found.rest}")
        if found.slots != before.slots:
            names = ", ".join(slot.id for slot in found.slots)
            self._note(f"the job now has these slots: {names}" if names else "the job now has no slots")
        kept, until = {slot.id for slot in found.slots}, time.monotonic() + self._launch.leave_grace
        taken = [number for number, slot in self.workers.slots.items() if slot not in kept]
        self._leaving = {number: self._leaving.get(number, until) for number in taken}
        if self._greeted:
            self._tell_allocation()

    def insist(self) -> None:
        """Kill workers that have not left their slots in time: the worker or its driver hangs."""
        now, there = time.monotonic(), self.workers.slots
        self._leaving = {number: at for number, at in self._leaving.items() if number in there}
        for number in [number for number, at in self._leaving.items() if at <= now]:
            del self._leaving[number]
            pid = self.workers.pid(number)
            if pid is not None:
                self._note(f"worker {number} did not leave its slot within {self._launch.leave_grace:g} s; killing it")
                tree.signal_group(pid, signal.SIGKILL)

    @property
    def timers(self) -> list[float]:
        """Moments at which work is due even without an event."""
        return list(self._leaving.values())

    def _tell_allocation(self) -> None:
        slots = [{"id": slot.id, "kind": slot.kind} for slot in self._allocation.slots]
        spec = self._launch.spec
        self._send({
            "event": "allocation", "slots": slots, "max_workers": spec.resources.engines,
            "attributes": spec.program.attributes, "next_worker": self._highest + 1, "rest": self._allocation.rest,
        })

    @property
    def held(self) -> Held:
        """The slots that the job holds now, and the state of its driver."""
        slots = tuple(slot.id for slot in self._allocation.slots)
        rested, stored = self._rested or (None, False)
        return Held(
            self._allocation.sequence, slots, tuple(dict.fromkeys([*slots, *sorted(self.workers.held)])),
            tuple(sorted(self.workers.slots)), self._restarted or self._recovering, self._usable,
            self._allocation.rest, rested, stored,
        )

    # --- workers

    def worker_ended(self, number: int, pid: int, status: int, because: str | None) -> None:
        """Tell the driver that a worker has ended; `status` is negative for a signal."""
        self.workers.ended(number)
        self._count()
        self._exited(number, pid, status if status >= 0 else None, -status if status < 0 else None, because)

    def _spawn(self, worker: int, slot: str, address: str, key: str) -> None:
        place = next((found for found in self._allocation.slots if found.id == slot), None)
        why = self._refusal(worker, address, key)
        if place is None:
            why = f"slot {slot!r} is not in the allocation"
        elif why is None:
            hub = {"DLI_HUB_ADDRESS": address, "DLI_HUB_KEY": key}
            try:
                self.workers.started(worker, self._start(self.planner.engine_worker(worker, place, hub)), slot)
                self._highest = max(self._highest, worker)
                self._count()
                return
            except OSError as problem:
                why = f"cannot start the process: {problem}"
        self._note(f"worker {worker} was not started: {why}")
        self._exited(worker, None, None, None, why)

    def _refusal(self, worker: int, address: str, key: str) -> str | None:
        """Return why a worker cannot be started as requested; None if it can."""
        if not 0 < worker <= _MOST_WORKERS:
            return "the number of the worker is out of range"
        if worker in self.workers:
            return "the worker is already running"
        if not re.fullmatch(r"[!-~]{1,200}", address) or not re.fullmatch(r"[!-~]{1,500}", key):
            return "the address or the key of the hub is malformed"
        return None

    def _count(self) -> None:
        """Report the number of running workers, until the driver reports the number of training workers."""
        if not self._counted_by_driver:
            self._progress.update({wire.WORKERS: len(self.workers)})

    def _exited(
        self, worker: int, pid: int | None, exit_code: int | None, number: int | None, reason: str | None
    ) -> None:
        self._send({
            "event": "exited", "worker": worker, "pid": pid, "exit_code": exit_code, "signal": number,
            "reason": reason,
        })
