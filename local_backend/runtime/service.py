"""The runner's tasks for a service: kernels on the slots of its allocation (docs/processes.md).

A *seat* is the place of one kernel on a slot. The service keeps a kernel in each seat: it starts a kernel in place of
one that has ended, and ends the kernels on slots that were taken away.
"""

from __future__ import annotations

import itertools
import os
import select
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dlicmd.contract import wire
from local_backend.files import remove_tree, write_json
from local_backend.runtime import tree
from local_backend.runtime.launch import Launch
from local_backend.runtime.launcher import Held
from local_backend.runtime.launcher_log import one_line
from local_backend.runtime.paths import worker_task
from local_backend.runtime.progress import Progress
from local_backend.runtime.server_link import Source
from local_backend.runtime.shortening import shorten
from local_backend.runtime.tasks import Planner, TaskPlan
from local_backend.runtime.verdict import describe
from local_backend.runtime.workers import Workers, started
from local_backend.scheduler.model import Allocation, Slot

#: Seconds before the next kernel of a seat, by the number of its kernels in a row that ended early; then _LONGEST.
_PAUSES = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
_LONGEST = 30.0
#: A kernel that ends within so many seconds after it was ready has ended early.
_EARLY = 10.0
#: Kernels of one seat in a row that did not become ready, while no kernel is ready, after which the service ends.
MOST_FAILURES = 5
#: Seconds between two looks at the sizes of outputs.
_SHORTEN_EVERY = 30.0
#: Ended kernels whose output is kept.
_KEPT_OUTPUT = 50


@dataclass
class _Kernel:
    """A running kernel."""

    pid: int
    seat: _Seat
    stderr: Path
    #: Read end of the pipe on which the kernel says that it is ready; -1 once it is closed.
    pipe: int
    #: When it is killed if it is not ready by then (monotonic).
    deadline: float
    #: When it became ready; None before.
    ready: float | None = None
    #: When it is killed if it has not left by then; None while it shall not leave.
    leave: float | None = None
    #: Why this process killed it; None if it did not.
    killed: str | None = None


@dataclass
class _Seat:
    """A place for a kernel on a slot."""

    slot: Slot
    #: When the next kernel may start (monotonic).
    again: float = 0.0
    #: Kernels in a row that ended early, and that did not become ready.
    early: int = 0
    failures: int = 0
    taken: bool = False


class RunningService:
    """The kernels of a service."""

    def __init__(
        self, launch: Launch, planner: Planner, *, start: Callable[[TaskPlan], int], progress: Progress,
        note: Callable[[str], None], fail: Callable[[str], None],
    ) -> None:
        """`fail` gets a sentence when no kernel can become ready; the service is then over."""
        assert launch.spec.service is not None
        self.workers = Workers()
        #: Highest number of a kernel that became ready; -1 before the first one. Restarts count from there.
        self.furthest = -1.0
        self._launch = launch
        self._service = launch.spec.service
        self._planner = planner
        self._start = start
        self._progress = progress
        self._note = note
        self._fail = fail
        self._allocation = Allocation(launch.slots, rest=launch.rest)
        self._seats: dict[str, list[_Seat]] = {}
        self._kernels: dict[int, _Kernel] = {}
        #: Kernels that ended without being asked to.
        self._deaths = 0
        #: Numbers of the ended kernels whose output is kept, oldest first.
        self._ended = started(launch.paths)
        self._numbers = itertools.count(max(self._ended, default=0) + 1)
        #: When the sizes of outputs are looked at next (monotonic).
        self._shorten_at = 0.0
        #: Whether the service is being stopped, so that no kernel starts.
        self._ending = False

    def begin(self) -> None:
        """Write the description of the model, and start the kernels. Raises OSError."""
        write_json(self._launch.paths.model_description, description(self._launch))
        self._furnish()
        self.insist()

    # --- the interface that it shares with the engine

    def reallocate(self, found: Allocation) -> None:
        """Act on an allocation that the server sent. Ignore one that is not newer."""
        if found.sequence <= self._allocation.sequence:
            return
        before, self._allocation = self._allocation, found
        if found.slots != before.slots:
            counts = Counter(slot.id for slot in found.slots)
            names = ", ".join(name if count == 1 else f"{name} for {count} kernels" for name, count in counts.items())
            self._note(f"the service now has these slots: {names}" if names else "the service now has no slots")
        self._furnish()
        self.insist()

    def insist(self) -> None:
        """Do what is due: kill kernels that are late, start kernels in empty seats."""
        now = time.monotonic()
        for number, kernel in self._kernels.items():
            if kernel.killed is not None:
                continue
            if kernel.leave is not None and kernel.leave <= now:
                self._kill(number, f"it did not leave within {self._service.leave_timeout:g} s")
            elif kernel.leave is None and kernel.ready is None and kernel.deadline <= now:
                limit = f"{self._service.connection_timeout:g} s (connection_timeout)"
                self._kill(number, f"it was not ready within {limit}")
        if now >= self._shorten_at:
            self._shorten_at = now + _SHORTEN_EVERY
            self._shorten()
        for seat in [] if self._ending else self._empty:
            if seat.again <= now and self.workers.on(seat.slot.id) < len(self._seats[seat.slot.id]):
                self._start_kernel(seat)

    @property
    def timers(self) -> list[float]:
        """Moments at which work is due even without an event."""
        running = [kernel for kernel in self._kernels.values() if kernel.killed is None]
        times = [kernel.leave for kernel in running if kernel.leave is not None]
        times += [kernel.deadline for kernel in running if kernel.ready is None and kernel.leave is None]
        # A seat whose pause is over waits for the end of a process on its slot, which is an event.
        now = time.monotonic()
        times += [self._shorten_at] if self._kernels else []
        return times + [seat.again for seat in self._empty if seat.again > now and not self._ending]

    @property
    def sources(self) -> list[Source]:
        """Descriptors with their handlers and the events of poll(2) to wait for."""
        return [(kernel.pipe, partial(self._on_pipe, number), select.POLLIN)
                for number, kernel in self._kernels.items() if kernel.pipe >= 0]

    @property
    def held(self) -> Held:
        """The slots that the service holds now."""
        slots, each = tuple(slot.id for slot in self._allocation.slots), self._service.kernels_per_slot
        lived = Counter({slot: -(-self.workers.on(slot) // each) for slot in sorted(self.workers.held)})
        return Held(
            self._allocation.sequence, slots, (*slots, *(lived - Counter(slots)).elements()),
            tuple(sorted(self.workers.slots)), rest=self._allocation.rest,
        )

    def worker_ended(self, number: int, pid: int, status: int, because: str | None) -> None:
        """Note that a kernel has ended; `status` is negative for a signal."""
        kernel = self._kernels.pop(number)
        if kernel.pipe >= 0:
            self._read(number, kernel)  # it may have become ready and ended at once
            self._close(kernel)
        kernel.seat.taken = False
        self.workers.ended(number)
        if kernel.leave is None:
            self._deaths += 1
            self._died(number, kernel, because or kernel.killed or describe(status, kernel.stderr))
        self._count()
        self._forget_output(number)

    def drain(self) -> float:
        """Let all kernels leave, and start no further ones. Return the seconds that this may take."""
        self._ending = True
        for number, kernel in self._kernels.items():
            self._dismiss(number, kernel)
        return self._service.leave_timeout

    # --- seats

    def _furnish(self) -> None:
        """Set the seats by the allocation, which names a slot of a pack once per kernel. Tell kernels of removed seats
        to end."""
        kept = self._seats
        self._seats = {
            slot.id: _seats_on(slot, kept.get(slot.id, []), self._service.kernels_per_slot * times)
            for slot, times in Counter(self._allocation.slots).items()
        }
        for number, kernel in self._kernels.items():
            if not any(kernel.seat is seat for seat in self._seats.get(kernel.seat.slot.id, ())):
                self._dismiss(number, kernel)
        self._count()

    @property
    def _empty(self) -> Iterator[_Seat]:
        """The seats without a kernel, as many as kernels may still start."""
        room = self._launch.spec.resources.num_worker
        seats = [seat for seats in self._seats.values() for seat in seats]
        room -= sum(seat.taken for seat in seats)
        return itertools.islice((seat for seat in seats if not seat.taken), max(0, room))

    def _start_kernel(self, seat: _Seat) -> None:
        number, service = next(self._numbers), self._service
        ours, theirs = os.pipe()
        os.set_blocking(ours, False)
        plan = self._planner.kernel(number, seat.slot, theirs)
        try:
            pid = self._start(plan)
        except OSError as problem:
            os.close(ours)
            os.close(theirs)
            self._failed(seat, f"cannot start a kernel: {problem.strerror or problem}")
            return
        os.close(theirs)  # not in a `finally`: a forked kernel leaves by an exception, and needs it
        seat.taken = True
        self.workers.started(number, pid, seat.slot.id)
        self._kernels[number] = _Kernel(
            pid, seat, plan.stderr, ours, time.monotonic() + service.connection_timeout)
        self._count()

    def _dismiss(self, number: int, kernel: _Kernel) -> None:
        """Ask a kernel to answer what it has, and to end. Not its children: it may need them for that."""
        if kernel.leave is None:
            kernel.leave = time.monotonic() + self._service.leave_timeout
            for name in (signal.SIGTERM, signal.SIGCONT):
                tree.signal_one(kernel.pid, name)

    def _kill(self, number: int, why: str) -> None:
        kernel = self._kernels[number]
        kernel.killed = why
        self._note(f"killing kernel {number}: {why}")
        tree.signal_group(kernel.pid, signal.SIGKILL)

    # --- what kernels do

    def _on_pipe(self, number: int) -> None:
        kernel = self._kernels.get(number)
        if kernel is not None and kernel.pipe >= 0:
            self._read(number, kernel)

    def _read(self, number: int, kernel: _Kernel) -> None:
        """Read whether a kernel is ready. A kernel that closes the pipe without a byte is not."""
        try:
            said = os.read(kernel.pipe, 1)
        except BlockingIOError:
            return
        self._close(kernel)
        if said and kernel.ready is None:
            kernel.ready = time.monotonic()
            self.furthest = max(self.furthest, number)
            for seat in itertools.chain.from_iterable(self._seats.values()):
                seat.failures = 0
            self._note(f"kernel {number} is ready")
            self._count()

    def _close(self, kernel: _Kernel) -> None:
        if kernel.pipe >= 0:
            os.close(kernel.pipe)
            kernel.pipe = -1

    def _died(self, number: int, kernel: _Kernel, why: str) -> None:
        """Plan the next kernel in place of one that has ended without being asked to."""
        now = time.monotonic()
        if kernel.ready is not None and now - kernel.ready > _EARLY:
            kernel.seat.early, kernel.seat.again = 0, now
            self._progress.update({wire.MESSAGE: None})
            return
        text = f"kernel {number} ended: {one_line(why)}"
        if kernel.ready is None:
            self._failed(kernel.seat, text)
        else:
            self._put_off(kernel.seat, text)

    def _failed(self, seat: _Seat, why: str) -> None:
        """Plan the next kernel after one that did not become ready. End the service if none can."""
        seat.failures += 1
        self._put_off(seat, why)
        is_ready = any(kernel.ready is not None and kernel.leave is None for kernel in self._kernels.values())
        if seat.failures >= MOST_FAILURES and not is_ready and not self._ending:
            self._ending = True
            self._fail(f"{MOST_FAILURES} kernels in a row did not become ready; the last one: {why}")

    def _put_off(self, seat: _Seat, why: str) -> None:
        pause = _PAUSES[seat.early] if seat.early < len(_PAUSES) else _LONGEST
        seat.early += 1
        seat.again = time.monotonic() + pause
        self._progress.update({wire.MESSAGE: why})

    def _count(self) -> None:
        """Report the numbers of kernels. The report of a death is over when all seats have a ready kernel again."""
        ready = sum(kernel.ready is not None and kernel.leave is None for kernel in self._kernels.values())
        values: dict[str, Any] = {
            wire.WORKERS: len(self.workers), wire.READY_KERNELS: ready, wire.DEATHS: self._deaths}
        if ready and not any(self._empty) and ready >= len(self._kernels):
            values[wire.MESSAGE] = None
        self._progress.update(values)

    def _shorten(self) -> None:
        """Bound the output of kernels that run for long."""
        for number in self._kernels:
            for stream in ("stdout", "stderr"):
                path = self._launch.paths.capture(worker_task(number), stream, elastic=True)
                with suppress(OSError):
                    shorten(path)

    def _forget_output(self, number: int) -> None:
        """Remove the output of the kernel that ended first, if more than enough is kept."""
        self._ended.append(number)
        paths = self._launch.paths
        while len(self._ended) > _KEPT_OUTPUT:
            task = worker_task(self._ended.pop(0))
            with suppress(OSError):
                for stream in ("stdout", "stderr"):
                    paths.capture(task, stream, elastic=True).unlink(missing_ok=True)
                    paths.output_times(task, stream).unlink(missing_ok=True)
                if not paths.logs.is_symlink():  # the program can have put a link there
                    remove_tree(paths.log_dir(task))


def _seats_on(slot: Slot, before: list[_Seat], count: int) -> list[_Seat]:
    """Return `count` seats on a slot: first the seats with kernels, then empty seats from `before`, then new seats."""
    kept = sorted(before, key=lambda seat: not seat.taken)[:count]
    return kept + [_Seat(slot) for _ in range(count - len(kept))]


def description(launch: Launch) -> dict[str, object]:
    """Return what a kernel reads about its model: model.json with absolute paths, and the file or the name of the
    kernel."""
    service, code = launch.spec.service, launch.paths.code(launch.spec)
    assert service is not None
    found = dict(service.description) | {"model_path": str(code)}
    weight = found.get("weight_path")
    if isinstance(weight, str) and weight not in ("", "N/A"):
        found["weight_path"] = os.path.normpath(code / weight)
    main = launch.spec.program.main
    if service.ready_made is not None:
        found["ready_made"] = service.ready_made
    elif main is not None:
        found["kernel_path"] = str(code / main)
    return found
