"""The supervisor: makes processes match the allocation, and the database match the processes.

The supervisor is one thread of the server. Only this thread changes the state of an exec after SUBMITTED. It sleeps
until an event: `wake` from the API, the end of a runner, a message from the nursery, a timer.
"""

from __future__ import annotations

import importlib
import logging
import os
import queue
import select
import threading
import time
from collections import Counter
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace

import psutil
from sqlalchemy.exc import SQLAlchemyError

from local_backend import interpreter
from local_backend.runtime.allocation import open_nudges
from local_backend.runtime.control import Control
from local_backend.runtime.health import Health
from local_backend.runtime.occupancy import Place, places
from local_backend.runtime.resizing import Resized, held_by
from local_backend.runtime.starter import Starter
from local_backend.scheduler.model import Reason
from local_backend.scheduler.slots import discover
from local_backend.settings import Settings
from local_backend.store.database import Database

_log = logging.getLogger(__name__)
#: Seconds before the next try, after a failure of database or disk.
_RETRY = 1.0
#: Seconds that `resize` waits for the thread.
_RESIZE_PATIENCE = 30.0


class Supervisor:
    """Runs the execs of one backend. Call `start` first and `close` last; in between, call the other methods from any
    thread."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings = settings
        self._wake_reader, self._wake_writer = os.pipe()
        for end in (self._wake_reader, self._wake_writer):
            os.set_blocking(end, False)
        self._starter = Starter(settings.paths, settings.nursery_idle)
        total = discover(settings.slots)
        self._health = Health(total, lambda: held_by(self._control.everyone), self.wake, settings.health_every)
        self._control = Control(settings, database, self._starter, total, self._health)
        self._thread = threading.Thread(target=self._loop, name="supervisor", daemon=True)
        self._closing = False
        self._retry_at: float | None = None
        #: FIFO through which runners wake this thread; None before the start, or if it cannot be created.
        self._nudges: int | None = None
        #: Number of turns completed without an error.
        self._rounds = 0
        self._rounds_change = threading.Condition()
        self._resizes: queue.SimpleQueue[tuple[str, int | None, Future[Resized]]] = queue.SimpleQueue()

    def start(self) -> None:
        """Adopt the execs of an earlier server, then start the thread.

        Raises OSError when the home cannot be used.
        """
        bundle = importlib.import_module("local_backend.elastic.api.bundle")
        bundle.build(self._settings.paths.fabric_home)
        self._starter.warm_up()
        try:
            self._nudges = open_nudges(self._settings.paths.nudges)
        except OSError as problem:
            where = self._settings.paths.nudges
            _log.warning("cannot open %s: %s; slots that a job releases become free later", where, problem)
        self._control.adopt()
        self._health.start()
        self._thread.start()

    def wake(self) -> None:
        """Make the thread read the database now."""
        try:
            os.write(self._wake_writer, b"!")
        except BlockingIOError:
            pass  # the pipe is full: the thread will wake anyway

    def close(self) -> None:
        """End the threads and the nursery; jobs keep running, and the next server adopts them."""
        self._health.close()
        if self._thread.is_alive():
            self._closing = True
            self.wake()
            self._thread.join()
        self._control.close()
        self._starter.close()
        while not self._resizes.empty():
            self._resizes.get()[2].cancel()
        for end in (self._wake_reader, self._wake_writer, self._nudges):
            if end is not None:
                os.close(end)

    def resize(self, exec_id: str, count: int | None) -> Resized:
        """Fix the slots of a running elastic exec to `count`; with None, let the scheduler decide again.

        Raises ResizeError, and errors of database and disk. Raises TimeoutError or CancelledError, with nothing
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

    def comes_round(self, seconds: float) -> bool:
        """Return whether the thread completes a turn without an error within `seconds`."""
        with self._rounds_change:
            before = self._rounds
            self.wake()
            return self._rounds_change.wait_for(lambda: self._rounds != before, seconds)

    def reason(self, exec_id: str) -> Reason | None:
        """Return why an exec waits, with the estimate in epoch seconds. Return None when the exec does not wait, or
        when no decision was made yet."""
        found = self._control.reason(exec_id)
        if found is None or found.estimate is None:
            return found
        return replace(found, estimate=time.time() + found.estimate - time.monotonic())

    def status(self) -> dict[str, object]:
        """Return the slots, the pending and running execs, and the nursery, for GET /status."""
        total, everyone = self._control.total, self._control.everyone
        kinds = Counter(slot.kind for slot in total)
        return {
            "slots": {
                "total": len(total), "held": len(held_by(everyone)), "drained": dict(self._health.drained), **kinds,
            },
            "queued": self._control.queued,
            "running": len(everyone),
            "nursery": self._starter.state,
        }

    def places(self) -> list[Place]:
        """Return the current slots of the machine and their holders."""
        return places(self._control.machine, self._control.everyone)

    def _loop(self) -> None:
        while not self._closing:
            try:
                with interpreter.computing():
                    self._control.turn()
                self._retry_at = None
                with self._rounds_change:
                    self._rounds += 1
                    self._rounds_change.notify_all()
                self._resize()
            except Exception as problem:  # one faulty turn must not end the thread that serves all execs
                known = isinstance(problem, SQLAlchemyError | OSError | psutil.Error)
                _log.error("supervisor failed, trying again in %g s: %s", _RETRY, problem, exc_info=not known)
                self._retry_at = time.monotonic() + _RETRY
            try:
                self._wait()
            except OSError as problem:
                _log.error("cannot wait for events: %s", problem)
                time.sleep(_RETRY)

    def _resize(self) -> None:
        """Execute the queued requests of `resize`."""
        while not self._resizes.empty():
            exec_id, count, asked = self._resizes.get()
            if not asked.set_running_or_notify_cancel():
                continue
            try:
                asked.set_result(self._control.resize(exec_id, count))
            except Exception as problem:
                asked.set_exception(problem)
            self.wake()  # other execs may have to give up slots, or may get more

    def _wait(self) -> None:
        """Sleep until an event or a timer, then process the events."""
        poll = select.poll()
        for fd in self._sources():
            poll.register(fd, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(self._timeout())}
        for end in (self._wake_reader, self._nudges):
            if end in ready:
                _drain(end)
        if self._starter.fd in ready:
            self._starter.on_event()
        self._starter.tick()
        self._control.on_ready(ready)

    def _sources(self) -> list[int]:
        nursery = [self._starter.fd] if self._starter.fd is not None else []
        nudges = [self._nudges] if self._nudges is not None else []
        return [self._wake_reader, *nudges, *nursery, *self._control.descriptors]

    def _timeout(self) -> float | None:
        """Return the milliseconds until the next timer; None if no timer is set."""
        if self._retry_at is not None:
            times = [self._retry_at]
        else:
            nursery = [self._starter.due] if self._starter.due is not None else []
            times = [*nursery, *self._control.timers]
        return max(0.0, min(times) - time.monotonic()) * 1000 + 1 if times else None


def _drain(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        return
