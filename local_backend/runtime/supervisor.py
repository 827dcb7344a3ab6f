"""The supervisor: makes processes match the allocation, and the database match the processes.

The supervisor is one loop of the server (see loop.py). Only its thread changes the state of an exec after SUBMITTED; an
exec that can never run ends in the transaction that creates it, and the supervisor does not see it. A turn begins with
an event: `wake` from the API, the end of a runner, a message from the nursery, a timer.
"""

from __future__ import annotations

import importlib
import queue
import time
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace

from local_backend import interpreter
from local_backend.runtime.active import LiveValues
from local_backend.runtime.control import Control
from local_backend.runtime.launcher import Launcher
from local_backend.runtime.loop import Backoff, Loop
from local_backend.runtime.occupancy import SlotPlace, places
from local_backend.runtime.resizing import Resized, held_by
from local_backend.scheduler.model import Machine, Reason, SchedulerJob
from local_backend.settings import Settings
from local_backend.store.database import Database

#: Longest pause in seconds after a turn that failed: all execs wait for the supervisor.
_LONGEST_PAUSE = 10.0
#: Seconds that `resize` waits for the thread.
_RESIZE_PATIENCE = 30.0


class Supervisor:
    """Runs the execs of one backend. Call `start` first and `close` last; in between, call the other methods from any
    thread."""

    def __init__(self, settings: Settings, database: Database, launcher: Launcher) -> None:
        self._settings = settings
        self._launcher = launcher
        self._control = Control(settings, database, launcher)
        self._loop = Loop(
            "supervisor", self._turn, descriptors=self._descriptors, backoff=Backoff(longest=_LONGEST_PAUSE)
        )
        #: Whether `wake` was called since the last turn; when the next turn is due without an event.
        self._woken = False
        self._due: float | None = 0.0
        self._resizes: queue.SimpleQueue[tuple[str, int | None, Future[Resized]]] = queue.SimpleQueue()

    def start(self) -> None:
        """Adopt the execs of an earlier server, then start the thread.

        Raises OSError when the home cannot be used.
        """
        bundle = importlib.import_module("local_backend.elastic.api.bundle")
        bundle.build(self._settings.paths.fabric_home)
        self._launcher.warm_up()
        self._control.adopt()
        self._launcher.watch_slots(lambda: held_by(self._control.everyone), self.wake)
        self._loop.start()

    def wake(self) -> None:
        """Make the thread read the database now."""
        self._woken = True
        self._loop.wake()

    @property
    def jobs(self) -> Sequence[SchedulerJob]:
        """The pending and running jobs as the last decision saw them. Times are on the monotonic clock."""
        return self._control.jobs

    @property
    def machine(self) -> Machine:
        """The slots, the memory and the labels of the machine."""
        return self._launcher.machine

    @property
    def loops(self) -> tuple[Loop, ...]:
        """The loops of the runtime."""
        return self._loop, *self._launcher.loops

    def close(self) -> None:
        """End the threads and the launcher; jobs keep running, and the next server adopts them."""
        self._loop.stop()
        self._control.close()
        self._launcher.close()
        while not self._resizes.empty():
            self._resizes.get()[2].cancel()

    def resize(self, exec_id: str, count: int | None) -> Resized:
        """Fix the slots of a running elastic exec to `count`; with None, let the scheduler decide again.

        Raises ResizeError, and database errors. Raises TimeoutError or CancelledError, with nothing
        changed, when the thread does not handle the request in time.
        """
        asked: Future[Resized] = Future()
        self._resizes.put((exec_id, count, asked))
        self.wake()
        try:
            return asked.result(_RESIZE_PATIENCE)
        except FutureTimeoutError:  # same class as the built-in TimeoutError only since Python 3.11
            if not asked.cancel():
                return asked.result()  # the resize has begun
            raise

    def cpu_seconds(self) -> dict[str, float]:
        """Return the CPU time, in seconds, that the processes of each running exec used so far."""
        return {active.exec_id: active.run.cpu_seconds() for active in self._control.everyone}

    def completes_turn(self, seconds: float) -> bool:
        """Return whether the thread completes a turn without an error within `seconds`."""
        self._woken = True
        return self._loop.completes_turn(seconds)

    def reason(self, exec_id: str) -> Reason | None:
        """Return why an exec waits, with the estimate in epoch seconds. Return None when the exec does not wait, or
        when no decision was made yet."""
        found = self._control.reason(exec_id)
        if found is None or found.estimate is None:
            return found
        return replace(found, estimate=time.time() + found.estimate - time.monotonic())

    def status(self) -> dict[str, object]:
        """Return the slots, the pending and running execs, and the launcher's state, for GET /status."""
        machine, everyone = self._launcher.machine, self._control.everyone
        kinds = Counter(slot.kind for slot in machine.slots)
        return {
            "slots": {
                "total": len(machine.slots), "held": len(held_by(everyone)), "drained": dict(machine.drained), **kinds,
            },
            "queued": self._control.queued,
            "running": len(everyone),
            **self._launcher.status,
        }

    def live(self, exec_id: str) -> LiveValues | None:
        """Return the last messages of the runner of an exec; None when the exec has none."""
        return self._control.live(exec_id)

    def places(self) -> list[SlotPlace]:
        """Return the current slots of the machine and their holders."""
        return places(self._control.machine, self._control.everyone)

    def _turn(self, ready: Set[int]) -> float | None:
        """Process the events, then everything that is due. Return when the next turn is due."""
        woken, self._woken = self._woken, False
        runners = frozenset(self._control.runners)
        self._launcher.on_ready(ready)
        self._launcher.tick()
        news = self._control.on_ready(ready)
        early = self._due is None or time.monotonic() < self._due
        if ready and ready <= runners and early and not (news or woken):
            return self._due  # progress alone needs no decision, and many jobs report it several times per second
        self._due = 0.0  # if a step fails, the next turn does it again
        with interpreter.computing():
            self._control.turn()
        self._resize()
        launcher = [self._launcher.due] if self._launcher.due is not None else []
        self._due = min([*launcher, *self._control.timers], default=None)
        return self._due

    def _resize(self) -> None:
        """Execute the queued requests of `resize`. Requests for a runner that has not sent its state wait for it."""
        for _ in range(self._resizes.qsize()):
            exec_id, count, asked = request = self._resizes.get()
            if asked.cancelled():
                continue
            if not self._control.is_known(exec_id):
                self._resizes.put(request)
                continue
            if not asked.set_running_or_notify_cancel():
                continue
            try:
                asked.set_result(self._control.resize(exec_id, count))
            except Exception as problem:
                asked.set_exception(problem)
            self.wake()  # other execs may have to give up slots, or may get more

    def _descriptors(self) -> Iterable[int]:
        return [*self._launcher.descriptors, *self._control.runners, *self._control.fetchers]
