"""Groups of workers that exchange tensors, one per generation, and how they form while training goes on.

A gloo group has three traps, and `Group` is there so that nobody else has to know them:

- A collective cannot be called off; its `wait`, though, may time out without harm. So waits are short and repeated, and
  `Group.interrupted` is asked in between.
- A send or a receive whose wait times out closes all connections of its group. So these are waited for without a limit,
  by a thread of their own; and a group that is dropped provokes such a timeout on purpose, which frees every thread
  that still waits in it, whatever has become of the peers.
- Destroying a group joins its threads, which takes 10 ms per member, and for ever when one of them holds the last
  reference to a tensor and the destroyer the interpreter's lock. So it happens in a thread of its own, which holds the
  tensors of recent operations until the group is gone.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch

from local_backend.elastic.errors import EngineError, GroupBroken
from local_backend.elastic.rendezvous import CONNECT_TIMEOUT, NO_TIMEOUT, Publish, RelayStore, gloo, nccl

#: How often `interrupted` is asked while waiting.
TICK = timedelta(milliseconds=20)
#: Seconds that an exiting interpreter waits for a thread that destroys a group or waits in one: it needs milliseconds.
EXIT_SECONDS = 10.0
#: The same for one that forms a group. It ends at once, but for one that connects to a peer that has just died: that
#: gives up after five limits. Left alone it would ask an interpreter that is taken apart for its lock, which ends the
#: whole process with SIGABRT.
FORMING_EXIT_SECONDS = 5 * CONNECT_TIMEOUT.total_seconds() + 5.0
#: Tags of point-to-point operations: tensors, and the receive that is never answered.
TENSOR, FAREWELL = 1, 2
#: Operations whose tensors are kept alive; a backend has at most this many under way, its two threads need two.
RECENT = 64


class Interrupted(EngineError):
    """The hub has called this member away while it waited for its peers."""


def never() -> bool:
    """Nobody interrupts."""
    return False


class Handle:
    """A collective under way."""

    def __init__(self, group: Group, work: Any) -> None:
        self._group = group
        self._work = work

    def wait(self) -> None:
        """Returns when the tensor holds the result. Raises GroupBroken and Interrupted."""
        if self._work is not None:
            self._group._wait(self._work)


class Group:
    """The members of one generation; `rank` is the position of this process in it. Tensors are flat and contiguous.

    Collectives are started by one thread, in the same order on all members. One `send` or `receive` per peer may run in
    other threads at the same time. After GroupBroken or Interrupted a group is of no more use but to be dropped.
    """

    def __init__(self, backend: Any, rank: int, size: int, generation: int, companions: Sequence[Any] = ()) -> None:
        """`backend`: None for a group of one. `companions`: what has to live as long as the backend."""
        self.rank = rank
        self.size = size
        self.generation = generation
        #: Asked every now and then while waiting; once true, the wait ends with Interrupted.
        self.interrupted: Callable[[], bool] = never
        self._backend = backend
        self._companions = companions
        self._recent: deque[Any] = deque(maxlen=RECENT)
        self._copies = torch.empty(0)
        if backend is not None:
            _standing.add(self)

    def all_to_all(
        self, received: torch.Tensor, sent: torch.Tensor, in_sizes: Sequence[int], out_sizes: Sequence[int]
    ) -> None:
        """Send `out_sizes[m]` elements of `sent` to each member m, and fill `received` with `in_sizes[m]` elements from
        each. Raises GroupBroken and Interrupted."""
        if self.size == 1:
            received.copy_(sent)
            return
        self._wait(self._start("alltoall_base", received, sent, list(in_sizes), list(out_sizes)))

    def all_gather(self, gathered: torch.Tensor, chunk: torch.Tensor) -> None:
        """Fill `gathered` with every member's `chunk`, in order of rank. A chunk that lies in its place already is not
        copied. Raises GroupBroken and Interrupted."""
        size = chunk.numel()
        if self.size == 2:
            # gloo's own all-gather allocates the whole result anew, fills that, and copies it.
            ours, theirs = gathered[self.rank * size :][:size], gathered[(1 - self.rank) * size :][:size]
            if ours.data_ptr() != chunk.data_ptr():
                ours.copy_(chunk)
            sizes = [size * (member != self.rank) for member in range(2)]
            self.all_to_all(theirs, chunk, sizes, sizes)
            return
        if self._copies.numel() != gathered.numel() or self._copies.dtype != gathered.dtype:
            self._copies = torch.empty_like(gathered)
        self._copies.view(self.size, size).copy_(chunk)
        self.all_to_all(gathered, self._copies, [size] * self.size, [size] * self.size)

    def all_reduce_start(self, tensor: torch.Tensor) -> Handle:
        """Start to replace `tensor` by its sum over all members. Raises GroupBroken."""
        return Handle(self, None if self.size == 1 else self._start("allreduce", tensor))

    def send(self, tensor: torch.Tensor, to: int) -> None:
        """Send to member `to`, which receives; returns when it is on its way. Raises GroupBroken and Interrupted."""
        self._wait_aside(self._start("send", [tensor], to, TENSOR), tensor)

    def receive(self, tensor: torch.Tensor, source: int) -> None:
        """Fill `tensor` with what member `source` sends. Raises GroupBroken and Interrupted."""
        self._wait_aside(self._start("recv", [tensor], source, TENSOR), tensor)

    def drop(self) -> None:
        """Let go, at once: closes the connections, which frees whoever waits in this group, here or in a peer.

        What peers have not yet received is lost: drop a healthy group only when every member is known to have finished
        with it, for instance after the first collective of the next group.
        """
        backend, self._backend = self._backend, None
        if backend is None:
            return
        _standing.discard(self)
        grave = [backend, self._companions, self._recent]
        del backend
        self._companions = ()
        aside(lambda: self._destroy(grave), "drop")

    def __del__(self) -> None:
        self.drop()

    def _destroy(self, grave: list[Any]) -> None:
        """`grave`: the backend (no one else may hold it), and what must outlive it."""
        try:
            unanswered = grave[0].recv([torch.empty(1)], (self.rank + 1) % self.size, FAREWELL)
            unanswered.wait(timedelta(milliseconds=1))
        except RuntimeError:
            pass  # as meant: all connections are closed now
        grave[0] = None
        grave.clear()

    def _start(self, operation: str, *arguments: Any) -> Any:
        backend = self._backend
        if backend is None:
            raise GroupBroken(f"the group of generation {self.generation} was dropped")
        self._recent.append(arguments)
        try:
            return getattr(backend, operation)(*arguments)
        except RuntimeError as error:
            raise self._broken(error) from error
        finally:
            del backend  # the frame may live on in a traceback

    def _wait(self, work: Any) -> None:
        while True:
            try:
                work.wait(TICK)
                return
            except RuntimeError:
                if work.is_completed():
                    break
            if self.interrupted():
                raise Interrupted(f"called away from generation {self.generation}")
        try:
            # It may have completed well after the wait gave up.
            work.wait()
        except RuntimeError as error:
            raise self._broken(error) from error

    def _wait_aside(self, work: Any, tensor: torch.Tensor) -> None:
        """Wait for a point-to-point operation, which does not bear a timeout."""
        failure: list[RuntimeError] = []
        ended = threading.Event()

        def finish() -> None:
            nonlocal work, tensor
            try:
                work.wait(NO_TIMEOUT)
            except RuntimeError as error:
                failure.append(error)
            del work, tensor
            ended.set()

        aside(finish, "transfer")
        while not ended.wait(TICK.total_seconds()):
            if self.interrupted():
                raise Interrupted(f"called away from generation {self.generation}")
        if failure:
            raise self._broken(failure[0]) from failure[0]

    def _broken(self, error: RuntimeError) -> GroupBroken:
        reason = str(error).partition("\n")[0]
        return GroupBroken(f"generation {self.generation} is broken, a peer is gone: {reason}")


class DeviceGroup(Group):
    """A group over NCCL: each member owns one GPU. Never run: it takes two GPUs."""

    def all_gather(self, gathered: torch.Tensor, chunk: torch.Tensor) -> None:
        self._wait(self._start("_allgather_base", gathered, chunk))

    def _wait(self, work: Any) -> None:
        while not work.is_completed():
            if self.interrupted():
                raise Interrupted(f"called away from generation {self.generation}")
            time.sleep(0.0002)
        try:
            work.wait()
        except RuntimeError as error:
            raise self._broken(error) from error

    def _wait_aside(self, work: Any, tensor: torch.Tensor) -> None:
        self._wait(work)

    def _destroy(self, grave: list[Any]) -> None:
        grave[0].abort()
        grave[0] = None
        grave.clear()


class Formation:
    """Forms the group of one generation, in a side thread, from the moment that it is made."""

    def __init__(  # noqa: PLR0917
        self,
        generation: int,
        rank: int,
        size: int,
        device: torch.device,
        publish: Publish,
        formed: Callable[[], None],
    ) -> None:
        """`publish(key, value)` sends a value to all other members, which get it by `deliver`. `formed()` says that the
        group stands. Both are called in the side thread; a group of one stands at once, without a thread."""
        self._generation, self._rank, self._size = generation, rank, size
        self._device = device
        self._formed = formed
        self._store = RelayStore(publish)
        self._changed = threading.Condition()
        self._group: Group | None = None
        self._failure: Exception | None = None
        self._unwanted = False
        if size == 1:
            self._group = Group(None, rank, size, generation)
            formed()
        else:
            _forming.add(self)
            aside(self._form, "formation", forms=True)

    def deliver(self, key: str, value: bytes) -> None:
        """What another member has published; it may come before this one asks for it."""
        self._store.deliver(key, value)

    def abandon(self) -> None:
        """Nobody will want the group: the side thread ends soon, a group that stands is dropped.

        Without effect once `result` has given the group away.
        """
        self._store.abandon()
        with self._changed:
            self._unwanted = True
            group, self._group = self._group, None
            self._changed.notify_all()
        if group is not None:
            group.drop()

    def result(self, interrupted: Callable[[], bool]) -> Group:
        """The group, which is the caller's from now on; waits for it. `interrupted` stays with it.

        Raises GroupBroken when it could not be formed or was abandoned, Interrupted when `interrupted` became true.
        """
        with self._changed:
            while self._group is None:
                if self._failure is not None:
                    raise GroupBroken(f"generation {self._generation} could not meet: {self._failure}")
                if self._unwanted:
                    raise GroupBroken(f"generation {self._generation} was abandoned")
                if interrupted():
                    raise Interrupted(f"called away from generation {self._generation}")
                self._changed.wait(TICK.total_seconds())
            group, self._group = self._group, None
        group.interrupted = interrupted
        return group

    def _form(self) -> None:
        kind, make = (DeviceGroup, nccl) if self._device.type == "cuda" else (Group, gloo)
        try:
            backend = make(self._store, self._rank, self._size)
        except Exception as error:
            # Whatever the backend, the store or `publish` raises: without a group this generation is none.
            with self._changed:
                self._failure = error.with_traceback(None)
                self._changed.notify_all()
            return
        group = kind(backend, self._rank, self._size, self._generation, companions=[self._store])
        del backend
        with self._changed:
            unwanted = self._unwanted
            self._group = None if unwanted else group
            self._changed.notify_all()
        if unwanted:
            group.drop()
        else:
            self._formed()


_standing: weakref.WeakSet[Group] = weakref.WeakSet()
_forming: weakref.WeakSet[Formation] = weakref.WeakSet()
#: Threads at work, or not quite gone, and whether they form a group.
_aside: dict[threading.Thread, bool] = {}


def aside(work: Callable[[], None], purpose: str, *, forms: bool = False) -> None:
    """Do it in a daemon thread, which an exiting interpreter waits for; `forms`: it forms a group.

    A thread inside the backend must not outlive the interpreter: on its way out it would ask for its lock.
    """

    # Not by the thread itself: what it lets go of last, a store or a group, takes the backend's code to the end.
    for gone in [thread for thread in list(_aside) if thread.ident is not None and not thread.is_alive()]:
        _aside.pop(gone, None)
    thread = threading.Thread(target=work, name=f"group-{purpose}", daemon=True)
    _aside[thread] = forms
    try:
        thread.start()
    except RuntimeError:
        # Python 3.12 and later start no threads while they exit.
        _aside.pop(thread, None)
        work()


def leave(forming: float = FORMING_EXIT_SECONDS) -> None:
    """Let go of all groups, and wait until no thread is inside the backend; so many seconds for one that forms a group.
    An exiting interpreter does so by itself; a process that ends without taking it apart need not wait for those."""
    for formation in list(_forming):
        formation.abandon()
    for group in list(_standing):
        group.drop()
    began = time.monotonic()
    for thread, forms in list(_aside.items()):
        _join(thread, began + (forming if forms else EXIT_SECONDS))


def _join(thread: threading.Thread, until: float) -> None:
    """Wait for a thread, which somebody else may be about to start."""
    while thread in _aside:
        try:
            thread.join(max(0.0, until - time.monotonic()))
            return
        except RuntimeError:
            if time.monotonic() > until:
                return
            time.sleep(0.001)


def _forget() -> None:
    """A fork has the groups of its parent, but not their threads."""
    _forming.clear()
    _standing.clear()
    _aside.clear()


atexit.register(leave)
os.register_at_fork(after_in_child=_forget)
