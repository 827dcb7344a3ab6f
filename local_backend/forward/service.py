"""Forwarding by the server: selects execs with metrics to forward, and runs their forwarders. Jobs take no part in
it: their programs write a file, and no part of a job waits for the forwarding."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Set
from dataclasses import dataclass, field

from dlicmd.contract.states import RECOVERING, RUNNING, TERMINAL
from local_backend.forward import orders
from local_backend.forward.forwarder import Forwarder, Pace
from local_backend.forward.orders import Order
from local_backend.forward.rabbitmq import RabbitChannel
from local_backend.forward.rest import RestChannel
from local_backend.runtime.loop import Loop
from local_backend.runtime.paths import HomePaths
from local_backend.store import execs
from local_backend.store.database import Database

_log = logging.getLogger(__name__)
#: Maximum number of forwarders at work; further execs wait for their turn.
_MOST = 200
#: Seconds that the shutdown of the server waits for forwarders to record what they have sent.
_GOODBYE = 2.0


@dataclass
class _Job:
    """An exec with metrics to forward."""

    order: Order
    wake_loop: Callable[[], None]
    state: str = ""
    forwarders: list[Forwarder] = field(default_factory=list)
    #: How often the exec had new events, counted from its first; and that number when its state was read last.
    events: int = 1
    seen: int = 0

    @property
    def is_done(self) -> bool:
        """Whether all metrics have been sent or given up."""
        return bool(self.forwarders) and all(one.finished for one in self.forwarders)

    def wake(self) -> None:
        """Note that the exec has new events."""
        self.events += 1
        self.wake_loop()


class Forwarding:
    """Forwards the metrics of a backend's execs. Call `start` first and `close` last; the rest from any thread."""

    def __init__(self, home: HomePaths, database: Database, loopback: bool, pace: Pace | None = None) -> None:
        """`loopback` says whether metrics may be sent to addresses of this machine."""
        self._home = home
        self._database = database
        self._loopback = loopback
        self._pace = pace or Pace()
        self._jobs: dict[str, _Job] = {}
        self._added: list[str] = []
        self._lock = threading.Lock()
        self.loop = Loop("forwarding", self._turn)

    def start(self) -> None:
        """Continue the orders that an earlier server has left, and watch for more."""
        self._added += orders.open_orders(self._home)
        self.loop.start()

    def add(self, exec_id: str) -> None:
        """Add a submitted exec whose order has been placed."""
        with self._lock:
            self._added.append(exec_id)
        self.loop.wake()

    def close(self) -> None:
        """Stop. Metrics that are not sent yet are left to the next server."""
        self.loop.stop()
        for exec_id, job in self._jobs.items():
            self._database.bus.unsubscribe(job.wake, exec_id)
        forwarders = [one for job in self._jobs.values() for one in job.forwarders]
        for one in forwarders:
            one.stop()
        for one in forwarders:
            one.stop(_GOODBYE / len(forwarders))

    def _turn(self, _ready: Set[int]) -> None:
        """Take up new orders, and start and end the forwarders that are due. Raises database errors."""
        self._take_up()
        self._read_states()
        for exec_id, job in list(self._jobs.items()):
            if not job.state or job.is_done:
                self._drop(exec_id)
        working = sum(len(job.forwarders) for job in self._jobs.values())
        for job in self._jobs.values():
            if not job.forwarders and job.state in TERMINAL | {RUNNING, RECOVERING} and working < _MOST:
                self._begin(job)
                working += len(job.forwarders)
            if job.state in TERMINAL:
                for one in job.forwarders:
                    one.over()

    def _read_states(self) -> None:
        """Read the states of the execs with events since the last read."""
        changed = {exec_id: job.events for exec_id, job in self._jobs.items() if job.events != job.seen}
        if changed:
            states = self._database.read(lambda c: execs.states_of(c, list(changed)))
            for exec_id, count in changed.items():
                self._jobs[exec_id].state, self._jobs[exec_id].seen = states.get(exec_id, ""), count

    def _take_up(self) -> None:
        with self._lock:
            added, self._added = self._added, []
        for exec_id in added:
            order = orders.find(self._home, exec_id)
            if order is None:
                _log.error("%s: cannot read %s; its metrics are forwarded after the next server start", exec_id,
                           self._home.order(exec_id))
            else:
                job = self._jobs[exec_id] = _Job(order, self.loop.wake)
                self._database.bus.subscribe(job.wake, exec_id)

    def _begin(self, job: _Job) -> None:
        order, targets = job.order, job.order.targets
        paths = self._home.job(order.exec_id, order.user)
        if targets.rest is not None:
            channel = RestChannel(targets.rest, order.exec_id, self._loopback)
            notes = self._home.forwarded(order.exec_id, "rest")
            job.forwarders.append(Forwarder(paths, "rest", notes, channel, self._pace, self.loop.wake))
        if targets.rabbit is not None:
            broker = RabbitChannel(targets.rabbit, order.exec_id, self._loopback)
            notes = self._home.forwarded(order.exec_id, "rabbitmq")
            job.forwarders.append(Forwarder(paths, "rabbitmq", notes, broker, self._pace, self.loop.wake))
        for one in job.forwarders:
            one.start()

    def _drop(self, exec_id: str) -> None:
        """Forget an exec whose metrics are all sent, or that is deleted."""
        job = self._jobs.pop(exec_id)
        self._database.bus.unsubscribe(job.wake, exec_id)
        for one in job.forwarders:
            one.stop()
        orders.remove(self._home, exec_id)
