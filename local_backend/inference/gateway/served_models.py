"""All models that the gateway serves: which queue takes a request, and what a new state of the server changes.

Without input or output: the caller gives the time, and calls `tick` when `next_tick` says so.
"""

from __future__ import annotations

import heapq
import hmac
import itertools
from collections.abc import Callable, Iterable
from typing import Protocol

from local_backend.inference.control import GatewayLoad, GatewayState, Model, Revision
from local_backend.inference.gateway import refusal as refusals
from local_backend.inference.gateway.choice import SmoothChoice
from local_backend.inference.gateway.deadlines import STEP, Deadlines
from local_backend.inference.gateway.queues import QueueHooks, RevisionQueue
from local_backend.inference.gateway.refusal import Refused
from local_backend.inference.gateway.tasks import AnswerSink, KernelSeat, QueuedRequest

#: Seconds between two looks for kernels that hang.
_LOOK = 0.25


class SuccessorLink(Protocol):
    """The gateway that replaces this one."""

    def take(self, request: QueuedRequest) -> None:
        """Take a request; its answer comes back."""

    def drop(self, request: QueuedRequest) -> None:
        """Forget a request whose client is gone."""


class ServedModel:
    """One model, with the queues of its revisions."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.queues: dict[int, RevisionQueue] = {}
        self.choice = SmoothChoice()

    @property
    def waiting(self) -> int:
        """How many requests wait in all its queues."""
        return sum(len(queue.waiting) for queue in self.queues.values())

    @property
    def is_ready(self) -> bool:
        """Whether a kernel can take a request now."""
        return any(queue.ready for queue in self.queues.values() if queue.revision.state != "failed")

    def pick(self, pinned: int | None = None) -> RevisionQueue:
        """Return the queue that takes the next request. Raises Refused if the model cannot answer it."""
        if pinned is not None:
            queue = self.queues.get(pinned)
            if queue is None or queue.revision.state == "draining":
                raise refusals.no_revision(self.model.name, pinned)
            if queue.revision.state == "failed":
                raise refusals.cannot_start(self.model.name, queue.revision.why)
            return queue
        if len(self.queues) == 1:
            (queue,) = self.queues.values()
            if queue.revision.state in ("serving", "starting"):
                return queue
        candidates = self._candidates()
        weights = {number: queue.revision.weight for number, queue in candidates.items() if queue.revision.weight > 0}
        return candidates[self.choice.choose(weights or dict.fromkeys(candidates, 1))]

    def _candidates(self) -> dict[int, RevisionQueue]:
        """Return the queues among which the weights choose. Raises Refused if there is none."""
        alive = {number: queue for number, queue in self.queues.items()
                 if queue.revision.state in ("serving", "starting")}
        if not alive:
            failed = [queue for queue in self.queues.values() if queue.revision.state == "failed"]
            if failed:
                raise refusals.cannot_start(self.model.name, failed[-1].revision.why)
            raise refusals.stopped(self.model.name)
        weighed = {number: queue for number, queue in alive.items() if queue.revision.weight > 0} or alive
        # A revision that starts gets requests as soon as it has a kernel. One that has no kernel, and cannot have one
        # now, gets none while another revision has kernels. One at zero kernels gets its part, for this starts it.
        best = {number: queue for number, queue in weighed.items()
                if queue.ready or (queue.revision.state == "serving" and not queue.revision.why)}
        if best:
            return best
        ready = {number: queue for number, queue in alive.items() if queue.ready}
        return ready or weighed


class ServedModels(QueueHooks):
    """All models, requests and kernels of the gateway."""

    def __init__(self, changed: Callable[[bool], None], wake: Callable[[float], None]) -> None:
        """`changed` is called when the load changed; with True if requests began to wait. `wake` is called with a time
        at which `tick` has something to do."""
        self.models: dict[str, ServedModel] = {}
        self.state: GatewayState | None = None
        #: Requests without their whole answer.
        self.open: set[QueuedRequest] = set()
        #: Takes all requests that wait, and all that arrive, while another gateway replaces this one.
        self.successor: SuccessorLink | None = None
        self._changed = changed
        self._wake = wake
        self._deadlines: Deadlines[QueuedRequest] = Deadlines()
        self._alarms: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = itertools.count(1)
        self._orders = itertools.count()
        self._look = 0.0
        #: Queues whose revision is gone, while kernels or requests are left.
        self._retired: list[RevisionQueue] = []

    # Requests -----------------------------------------------------------------------------------------------------

    def submit(self, served: ServedModel, body: bytes, meta: bytes, sink: AnswerSink, now: float, *,
               timeout: float | None = None, pinned: int | None = None, forced: bool = False) -> QueuedRequest:
        """Take a request. `timeout`: seconds that the client waits at most. `forced`: also if the queue is full.

        Returns the request, which may have its answer already. Raises Refused if the model does not take it.
        """
        queue = served.pick(pinned)
        limits = queue.limits
        if not forced and (len(queue.waiting) if len(served.queues) == 1 else served.waiting) >= limits.queue_size:
            raise refusals.full(served.model.name, queue.room_in())
        request = QueuedRequest(next(self._numbers), served.model.name, body, meta, sink=sink, now=now)
        request.pinned = pinned
        longest = limits.execution_timeout
        if timeout is not None and (longest is None or timeout < longest):
            longest, request.fixed = timeout, True
        if longest is not None:
            request.deadline = now + longest
            request.bucket = self._deadlines.add(request, request.deadline)
            if request.deadline < self._look:
                self._wake(request.deadline + STEP)
        if self._look <= now:
            self._look = now + _LOOK
            self._wake(self._look)
        self.open.add(request)
        if self.successor is not None:
            self.successor.take(request)
        else:
            queue.put(request, now)
        return request

    def withdraw(self, request: QueuedRequest) -> None:
        """End a request whose client is gone."""
        if request.sink is None:
            return
        queue = request.queue
        if isinstance(queue, RevisionQueue):
            queue.withdraw(request)
        else:
            request.sink = None
            self.ended(request)
            if self.successor is not None:
                self.successor.drop(request)

    def move(self, requests: Iterable[QueuedRequest], now: float) -> None:
        """Give requests that wait to the queue that now takes such requests, or refuse them."""
        found: dict[RevisionQueue, list[QueuedRequest]] = {}
        for request in requests:
            if self.successor is not None:
                request.queue = None
                self.successor.take(request)
                continue
            served = self.models.get(request.model)
            try:
                if served is None:
                    raise refusals.stopped(request.model)
                found.setdefault(served.pick(request.pinned), []).append(request)
            except Refused as why:
                self._end(request, why)
        for queue, moved in found.items():
            queue.adopt(moved, now)

    def _end(self, request: QueuedRequest, why: Refused) -> None:
        if isinstance(request.queue, RevisionQueue):
            request.queue.refuse(request, why)
        elif request.sink is not None:
            sink = request.sink
            self.withdraw(request)
            sink.refuse(why)

    def refuse_open(self, why: Refused) -> None:
        """Refuse all requests that have no whole answer."""
        for request in list(self.open):
            self._end(request, why)

    # Kernels ------------------------------------------------------------------------------------------------------

    def queue_of_key(self, key: str) -> RevisionQueue | None:
        """Return the queue of the revision with this key. All keys are compared, in constant time."""
        found = None
        for served in self.models.values():
            for queue in served.queues.values():
                if hmac.compare_digest(queue.revision.key.encode(), key.encode("utf-8", "surrogatepass")):
                    found = queue
        return found

    def lost(self, kernel: KernelSeat, now: float) -> None:
        """Note that a kernel is gone; its unanswered requests go to another one."""
        queue = kernel.queue
        if not isinstance(queue, RevisionQueue):
            return
        again = queue.left(kernel, now)
        if again and self.successor is None and self._takes(queue):
            queue.adopt(again, now)
        elif again:
            self.move(again, now)
        self._settle(queue, now)

    def _takes(self, queue: RevisionQueue) -> bool:
        """Whether requests may stay in a queue that has just lost a kernel."""
        if queue in self._retired:
            return False
        return bool(queue.ready) or queue.revision.state in ("serving", "starting")

    def _settle(self, queue: RevisionQueue, now: float) -> None:
        """Move the requests of a queue that no kernel will take."""
        state = "retired" if queue in self._retired else queue.revision.state
        if queue.waiting and (state == "failed" or (state in ("draining", "retired") and not queue.ready)):
            self.move(queue.take_all(), now)
        if state == "retired" and not queue.kernels and not queue.waiting:
            self._retired.remove(queue)

    def queues(self) -> list[RevisionQueue]:
        """Return the queues of all revisions, also of those that are gone and have kernels."""
        return [queue for served in self.models.values() for queue in served.queues.values()] + self._retired

    # State of the server ------------------------------------------------------------------------------------------

    def apply(self, state: GatewayState, now: float) -> None:
        """Follow a state of the server."""
        self.state = state
        touched: list[RevisionQueue] = []
        for name in self.models.keys() - state.models.keys():
            touched += self.models.pop(name).queues.values()
        self._retired += touched
        for name, model in state.models.items():
            served = self.models.get(name)
            if served is None:
                served = self.models[name] = ServedModel(model)
            served.model = model
            touched += self._follow(served, {one.number: one for one in model.revisions})
        for queue in touched:
            queue.dispatch(now)
        for queue in touched:
            self._settle(queue, now)
        self._changed(False)

    def _follow(self, served: ServedModel, wanted: dict[int, Revision]) -> list[RevisionQueue]:
        """Give a model the queues of its revisions. Return all that it had or has."""
        touched = []
        for number in list(served.queues):
            queue = served.queues[number]
            if number not in wanted or wanted[number].key != queue.revision.key:
                self._retired.append(served.queues.pop(number))
                touched.append(queue)
        for number, revision in wanted.items():
            found = served.queues.get(number)
            if found is None:
                found = served.queues[number] = RevisionQueue(served.model.name, revision, served.model.limits, self)
            found.revision, found.limits = revision, served.model.limits
            touched.append(found)
        return touched

    def load(self, when: float, now: float) -> GatewayLoad:
        """Return the load of all revisions. `when` is epoch seconds."""
        return GatewayLoad(when, {name: {number: queue.load(now) for number, queue in served.queues.items()}
                                  for name, served in self.models.items()})

    # Time ---------------------------------------------------------------------------------------------------------

    def next_tick(self) -> float | None:
        """Return when to call `tick`; None if nothing is open."""
        times = [self._alarms[0][0]] if self._alarms else []
        if self._look:
            times.append(self._look)
        due = self._deadlines.next()
        return min([*times, due]) if due is not None else min(times, default=None)

    def tick(self, now: float) -> None:
        """Do what is due: batches that waited long enough, deadlines, kernels that hang."""
        while self._alarms and self._alarms[0][0] <= now:
            heapq.heappop(self._alarms)[2](now)
        if now >= self._look:
            queues = list(self.queues())
            # A kernel may hang in a request whose client is gone.
            self._look = now + _LOOK if self.open or any(queue.running for queue in queues) else 0.0
            for queue in queues:
                for kernel in queue.overdue(now):
                    kernel.peer.kill()
                    self.lost(kernel, now)
        for request in self._deadlines.due(now):
            if request.sink is not None:
                self._expire(request)

    def _expire(self, request: QueuedRequest) -> None:
        """Refuse a request whose deadline has passed."""
        queue = request.queue
        seconds = round((request.deadline or request.arrived) - request.arrived, 3)
        why = refusals.too_late(request.model, seconds)
        if isinstance(queue, RevisionQueue) and request.batch is None and not queue.ready:
            why = refusals.not_ready(request.model, queue.revision.why)
        self._end(request, why)

    # Hooks of the queues ------------------------------------------------------------------------------------------

    def waits(self) -> None:
        self._changed(True)

    def changed(self) -> None:
        self._changed(False)

    def ended(self, request: QueuedRequest) -> None:
        self.open.discard(request)
        if request.bucket >= 0:
            self._deadlines.remove(request, request.bucket)
        self._changed(False)

    def progressed(self, request: QueuedRequest, now: float) -> None:
        """Extend the deadline of a stream that advances, unless the client has set it."""
        queue = request.queue
        if request.fixed or not isinstance(queue, RevisionQueue) or queue.limits.execution_timeout is None:
            return
        self._deadlines.remove(request, request.bucket)
        request.deadline = now + queue.limits.execution_timeout
        request.bucket = self._deadlines.add(request, request.deadline)

    def alarm(self, when: float, call: Callable[[float], None]) -> None:
        heapq.heappush(self._alarms, (when, next(self._orders), call))
        self._wake(when)
