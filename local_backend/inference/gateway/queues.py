"""The queue of one revision, and the kernels that take from it. Without input or output: the caller gives the time.

A request is in the queue, or a kernel has it, or it has its answer. Kernels answer in any order; the queue keeps the
order of arrival, and requests of a dead kernel return to its front.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from local_backend.inference.control import KernelLoad, RequestLimits, Revision, RevisionLoad
from local_backend.inference.gateway import refusal as refusals
from local_backend.inference.gateway.refusal import Refused
from local_backend.inference.gateway.tasks import NO_BATCH, AnswerSink, KernelBatch, KernelSeat, QueuedRequest
from local_backend.inference.kernel import frames

#: Part of the newest value in the moving averages.
_NEWEST = 0.1


class RevisionQueue:
    """Requests of one revision: those that wait, and those that its kernels have."""

    def __init__(self, model: str, revision: Revision, limits: RequestLimits, hooks: QueueHooks) -> None:
        self.model = model
        self.revision = revision
        self.limits = limits
        self.hooks = hooks
        self.waiting: OrderedDict[int, QueuedRequest] = OrderedDict()
        self.kernels: dict[KernelSeat, None] = {}
        #: Kernels that can take requests now, or when they have answered.
        self.ready = 0
        self.running = 0
        self.arrived = self.finished = self.failed = self.transferred = self.retried = self.killed = 0
        self.batch_seconds = self.batch_tasks = 0.0
        self.batches = self.batched = 0
        #: Connections that have sent a request and are open.
        self.clients = 0
        #: Answers that kernels sent, for `pass_on`: receiver, flags, body, metadata.
        self._answers: list[tuple[AnswerSink, int, bytes, bytes]] = []
        self._alarm = 0.0

    # What arrives -------------------------------------------------------------------------------------------------

    def put(self, request: QueuedRequest, now: float) -> None:
        """Take a request."""
        request.queue = self
        self.arrived += 1
        self.transferred += len(request.body)
        self.waiting[request.id] = request
        # Without a batch delay, all kernels are full if an earlier request still waits.
        if len(self.waiting) == 1 or self.limits.batch_delay > 0.0:
            self.dispatch(now)
        if request.batch is None:
            if len(self.waiting) == 1:
                self.hooks.waits()
            else:
                self.hooks.changed()

    def adopt(self, requests: Iterable[QueuedRequest], now: float) -> None:
        """Take requests of another queue, or of a dead kernel. All that wait are then in the order of arrival."""
        for request in requests:
            request.queue, request.batch = self, None
            self.waiting[request.id] = request
        self.waiting = OrderedDict(sorted(self.waiting.items()))
        self.dispatch(now)

    def take_all(self) -> list[QueuedRequest]:
        """Remove and return all requests that wait."""
        found = list(self.waiting.values())
        self.waiting.clear()
        return found

    def join(self, kernel: KernelSeat) -> None:
        """Take a kernel that has said HELLO."""
        kernel.queue = self
        self.kernels[kernel] = None
        self.hooks.changed()

    def set_ready(self, kernel: KernelSeat, now: float) -> None:
        """Let a kernel take requests."""
        if not kernel.ready and kernel in self.kernels:
            kernel.ready = True
            self.ready += not kernel.leaving
            self.hooks.changed()
            self.dispatch(now)

    def set_leaving(self, kernel: KernelSeat) -> None:
        """Give a kernel no further requests."""
        if not kernel.leaving and kernel in self.kernels:
            kernel.leaving = True
            self.ready -= kernel.ready
            self.hooks.changed()

    # What goes out ------------------------------------------------------------------------------------------------

    def dispatch(self, now: float) -> None:
        """Give waiting requests to kernels that have room."""
        limits, waiting = self.limits, self.waiting
        while waiting:
            kernel = self._free()
            if kernel is None:
                return
            if limits.batch_delay > 0.0 and len(waiting) < limits.batch_size:
                due = next(iter(waiting.values())).arrived + limits.batch_delay
                if now < due:
                    self._wake(due)
                    return
            self._send(kernel, min(limits.batch_size, len(waiting)), now)

    def _free(self) -> KernelSeat | None:
        """Return the ready kernel with the fewest batches, if it has room for one."""
        best, least = None, self.limits.parallel_size + self.limits.pipe_size - 1
        for kernel in self.kernels:
            if kernel.ready and not kernel.leaving and len(kernel.batches) < least:
                best, least = kernel, len(kernel.batches)
                if not least:
                    break
        return best

    def _wake(self, due: float) -> None:
        """Ask for a call of `dispatch` at this time, unless one comes at that time or before."""
        if self._alarm == 0.0 or due < self._alarm:
            self._alarm = due
            self.hooks.alarm(due, self._rung)

    def _rung(self, now: float) -> None:
        self._alarm = 0.0
        self.dispatch(now)

    def _send(self, kernel: KernelSeat, count: int, now: float) -> None:
        batch, waiting = KernelBatch(count), self.waiting
        if len(kernel.batches) < self.limits.parallel_size:
            batch.began = now
        kernel.batches[batch] = None
        requests = [waiting.popitem(last=False)[1] for _ in range(count)]
        for request in requests:
            request.batch = batch
            request.tries += 1
            kernel.tasks[request.id] = request
        self.running += count
        self.batches += 1
        self.batched += count
        kernel.peer.send(requests)

    # What comes back ----------------------------------------------------------------------------------------------

    def replied(self, kernel: KernelSeat, number: int, flags: int, body: bytes, meta: bytes, *, now: float) -> bool:
        """Take a reply of a kernel; `pass_on` must follow. `flags` are those of a REPLY frame. Return False if the
        kernel does not have this request."""
        more, failed = flags & frames.MORE, flags & frames.FAILED
        request = kernel.tasks.get(number)
        if request is None:
            return False
        sink, batch = request.sink, request.batch
        self.transferred += len(body)
        if more and not failed:
            if batch is not None and batch.began:
                batch.began = now  # a stream that advances does not hang
            if sink is not None:
                request.begun = True
                self.hooks.progressed(request, now)
                self._answers.append((sink, more | failed, body, meta))
            return True
        del kernel.tasks[number]
        self.running -= 1
        if failed:
            kernel.failed += 1
        else:
            kernel.finished += 1
        if batch in kernel.batches:
            batch.left -= 1
            if not batch.left:
                self._finished(kernel, batch, now)
        if sink is not None:
            self._end(request, bool(failed))
            self._answers.append((sink, failed, body, meta))
        return True

    def pass_on(self) -> None:
        """Give the answers that kernels sent to the clients. This takes longer than to account for them, so the kernel
        gets its next batch before."""
        answers, self._answers = self._answers, []
        for sink, flags, body, meta in answers:
            if flags & frames.FAILED:
                sink.refuse(refusals.kernel_failed(body.decode("utf-8", "replace"), meta))
            else:
                sink.part(body, bool(flags & frames.MORE), meta)

    def unanswered(self, kernel: KernelSeat, numbers: Iterable[int], now: float) -> None:
        """Note tasks that the kernel has returned from without an answer. Their clients wait for one that may come
        later; the kernel is free for the next batch, and is not killed for them."""
        for number in numbers:
            request = kernel.tasks.get(number)
            batch = request.batch if request is not None else None
            if request is None or batch not in kernel.batches:
                continue
            request.batch = NO_BATCH
            if request.sink is None:
                self._forget(kernel, request)
            batch.left -= 1
            if not batch.left:
                self._finished(kernel, batch, now)

    def _forget(self, kernel: KernelSeat, request: QueuedRequest) -> None:
        """Take a task from a kernel that will never answer it. It counts as failed."""
        del kernel.tasks[request.id]
        kernel.failed += 1
        self.running -= 1

    def _finished(self, kernel: KernelSeat, batch: KernelBatch, now: float) -> None:
        """Account for a batch without open requests, and send the next one."""
        del kernel.batches[batch]
        seconds = max(0.0, now - batch.began) if batch.began else 0.0
        if self.batches == 1 or not self.batch_tasks:
            self.batch_seconds, self.batch_tasks = seconds, float(batch.size)
        else:
            self.batch_seconds += _NEWEST * (seconds - self.batch_seconds)
            self.batch_tasks += _NEWEST * (batch.size - self.batch_tasks)
        if kernel.batches:
            kernel.promote(self.limits.parallel_size, now)
        if self.waiting:
            self.dispatch(now)

    def _end(self, request: QueuedRequest, failed: bool) -> None:
        """Note that a request gets the last part of its answer."""
        request.sink = None
        if failed:
            self.failed += 1
        else:
            self.finished += 1
        self.hooks.ended(request)

    # What ends early ----------------------------------------------------------------------------------------------

    def refuse(self, request: QueuedRequest, why: Refused) -> None:
        """End a request that waits, or that a kernel has, with a refusal."""
        sink = request.sink
        self.withdraw(request)
        if sink is not None:
            sink.refuse(why)

    def withdraw(self, request: QueuedRequest) -> None:
        """End a request whose client is gone. A kernel that has it may skip it."""
        if request.sink is None:
            return
        self.waiting.pop(request.id, None)
        self._end(request, True)
        if request.batch is not None:
            for kernel in self.kernels:
                if request.id in kernel.tasks:
                    kernel.peer.cancel(request.id)
                    if request.batch is NO_BATCH:
                        self._forget(kernel, request)

    def left(self, kernel: KernelSeat, now: float) -> list[QueuedRequest]:
        """Take a kernel out that is gone. Return its unanswered requests for another kernel; those that cannot have
        one are refused."""
        if kernel not in self.kernels:
            return []
        del self.kernels[kernel]
        self.ready -= kernel.ready and not kernel.leaving
        self.running -= len(kernel.tasks)
        open_requests = [one for one in kernel.tasks.values() if one.sink is not None]
        kernel.tasks.clear()
        kernel.batches.clear()
        again = []
        for request in open_requests:
            request.batch = None
            if request.begun or request.tries > 1 or not self.limits.retry:
                self.refuse(request, refusals.kernel_died(self.model))
            else:
                again.append(request)
        self.retried += len(again)
        self.hooks.changed()
        return again

    def overdue(self, now: float) -> list[KernelSeat]:
        """Return the kernels that have a batch for longer than the execution timeout, and refuse its requests."""
        seconds, found = self.limits.execution_timeout, []
        if seconds is None:
            return []
        for kernel in self.kernels:
            late = kernel.overdue(seconds, now) if kernel.batches else set()
            if late:
                found.append(kernel)
                for request in [one for one in kernel.tasks.values() if one.batch in late and one.sink is not None]:
                    self.refuse(request, refusals.too_late(self.model, seconds))
        self.killed += len(found)
        return found

    # What others need to know -------------------------------------------------------------------------------------

    @property
    def is_free(self) -> bool:
        """Whether no request waits and no kernel has one."""
        return not self.waiting and not self.running

    def room_in(self) -> float:
        """Return the seconds until the queue has probably room again."""
        if not self.ready or not self.batch_tasks:
            return refusals.SOON
        return len(self.waiting) * self.batch_seconds / self.batch_tasks / self.ready / 2

    def load(self, now: float) -> RevisionLoad:
        """Return what the autoscaler and the views need."""
        oldest = now - next(iter(self.waiting.values())).arrived if self.waiting else 0.0
        return RevisionLoad(
            len(self.waiting), self.running, round(max(0.0, oldest), 3), self.arrived, self.finished, self.failed,
            self.transferred, self.batch_seconds, self.batch_tasks, self.clients,
            tuple(one.load(KernelLoad) for one in self.kernels))


class QueueHooks:
    """What a queue tells its owner. The base class ignores everything, for tests of a queue alone."""

    def waits(self) -> None:
        """Note that requests begin to wait."""

    def changed(self) -> None:
        """Note that kernels came, became ready or went, or that further requests wait."""

    def ended(self, request: QueuedRequest) -> None:
        """Note that a request gets the last part of its answer."""

    def progressed(self, request: QueuedRequest, now: float) -> None:
        """Note that a stream got a part."""

    def alarm(self, when: float, call: Callable[[float], None]) -> None:
        """Call `call` with the time at `when`."""
