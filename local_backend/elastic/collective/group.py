"""Groups of workers that exchange tensors, one group per generation. A group forms while training goes on.

A gloo group has three traps, which `WorkerGroup` hides from the rest of the engine:

- A collective cannot be canceled, but its `wait` may time out without harm. So waits are short and repeated, and
  `WorkerGroup.interrupted` is called in between.
- When the wait for a send or a receive times out, gloo closes all connections of the group. So a separate thread waits
  for these operations, without a limit. `drop` causes such a timeout on purpose: this frees every thread that still
  waits in the group, whatever the state of the peers.
- Destroying a group joins its threads, which takes 10 ms per member. It never ends when one of these threads holds the
  last reference to a tensor while the destroying thread holds the interpreter's lock. So a separate thread destroys the
  group. This thread holds the tensors of recent operations until the group is gone.

The members find each other through a `RelayStore`. torch's own store is a server with clients. Each client costs a
reverse name lookup and waits that cannot be ended. Here the store of each member is a dictionary. A member publishes
its own values to the other members through the hub. The member waits for their values on a condition, and `abandon`
ends this wait.
"""

from __future__ import annotations

import atexit
import importlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import ProcessGroupGloo, Store

from local_backend.elastic.errors import EngineError, GroupBroken

LOOPBACK = "127.0.0.1"
#: Timeout of each connection while a group forms; gloo waits five times as long. A useless thread stays that long if
#: its peer is killed after publishing its value and before connecting.
CONNECT_TIMEOUT = timedelta(seconds=6)
#: No timeout in practice: the hub detects and reports a dead worker long before.
NO_TIMEOUT = timedelta(days=7)

#: The hub detects dead workers, so NCCL must not end the other processes. NCCL must not use multicast slots either,
#: because groups leave them behind.
NCCL_ENVIRONMENT = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    "TORCH_NCCL_PROPAGATE_ERROR": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_NONBLOCKING_TIMEOUT": "30",
    "NCCL_NVLS_ENABLE": "0",
}

Publish = Callable[[str, bytes], None]


class Abandoned(RuntimeError):
    """The rendezvous was abandoned, because its group is no longer needed."""


class RelayStore(Store):
    """A torch store whose values travel through the hub."""

    def __init__(self, publish: Publish) -> None:
        super().__init__()
        self._publish = publish
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._abandoned = False

    def set(self, key: str, value: str | bytes) -> None:
        """Set a value and publish it to the other members. The backend calls this method."""
        value = value.encode() if isinstance(value, str) else bytes(value)
        self.deliver(key, value)
        self._publish(key, value)

    def get(self, key: str) -> bytes:
        """Wait for a value and return it. The backend calls this method. Raises Abandoned."""
        with self._changed:
            self._changed.wait_for(lambda: self._abandoned or key in self._values)
            if self._abandoned:
                raise Abandoned(f"the rendezvous was abandoned before {key} arrived")
            return self._values[key]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all these keys have values. The backend calls this method. Raises Abandoned.

        `timeout` is ignored, because it would start long before slow members begin.
        """
        for key in keys:
            self.get(key)

    def check(self, keys: list[str]) -> bool:
        """Return whether all these keys have values. The backend calls this method."""
        with self._changed:
            return all(key in self._values for key in keys)

    def deliver(self, key: str, value: bytes) -> None:
        """Store a value that has arrived, and wake the waiting threads."""
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def abandon(self) -> None:
        """Make all present and future waits raise Abandoned."""
        with self._changed:
            self._abandoned = True
            self._changed.notify_all()


def gloo(store: RelayStore, rank: int, size: int) -> Any:
    """Return a gloo backend between processes of this machine, with all connections made."""
    backend: Any = ProcessGroupGloo
    options = backend._Options()
    options._devices = [backend.create_device(hostname=LOOPBACK)]
    options._timeout = CONNECT_TIMEOUT
    group = backend(store, rank, size, options)
    group._set_default_timeout(NO_TIMEOUT)
    return group


def nccl(store: RelayStore, rank: int, size: int) -> Any:
    """Return an NCCL backend: each member owns one device, seen as cuda:0. Never run: it needs two GPUs."""
    # By default, NCCL's watchdog ends a process whose peer has died.
    for name, value in NCCL_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    backend: Any = importlib.import_module("torch.distributed").ProcessGroupNCCL
    options = backend.Options()
    options._timeout = NO_TIMEOUT
    options.config.blocking = 0
    group = backend(store, rank, size, options)
    group.eager_connect_single_device(torch.device("cuda", 0))
    return group


#: Time between two calls of `interrupted` during a wait.
TICK = timedelta(milliseconds=20)
#: Seconds that an exiting interpreter waits for a thread that destroys a group or waits in one. The thread needs
#: milliseconds.
EXIT_SECONDS = 10.0
#: The same for a thread that forms a group. It ends at once, unless it connects to a peer that has just died: it then
#: gives up after five times CONNECT_TIMEOUT. Without this wait, the thread would ask an interpreter in shutdown for its
#: lock, which ends the whole process with SIGABRT.
FORMING_EXIT_SECONDS = 5 * CONNECT_TIMEOUT.total_seconds() + 5.0
#: Tags of point-to-point operations: tensors, and a receive that no send answers.
TENSOR, FAREWELL = 1, 2
#: Operations whose tensors are kept alive. A backend has at most this many in progress; its two threads need two.
RECENT = 64


class Interrupted(EngineError):
    """The hub has called this member to another generation while it waited for its peers, or the hub is gone."""


def never() -> bool:
    """Return False: a group that is never interrupted."""
    return False


class Handle:
    """A collective in progress."""

    def __init__(self, group: WorkerGroup, work: Any) -> None:
        self._group = group
        self._work = work

    def wait(self) -> None:
        """Wait until the tensor holds the result. Raises GroupBroken and Interrupted."""
        if self._work is not None:
            self._group._wait(self._work)


class WorkerGroup:
    """The members of one generation; `rank` is the position of this process. Tensors are flat and contiguous.

    One thread starts the collectives, in the same order on all members. Other threads may run one `send` or `receive`
    per peer at the same time. After GroupBroken or Interrupted, a group can only be dropped.
    """

    def __init__(self, backend: Any, rank: int, size: int, generation: int, companions: Sequence[Any] = ()) -> None:
        """`backend`: None for a group of one. `companions`: objects that must live as long as the backend."""
        self.rank = rank
        self.size = size
        self.generation = generation
        #: Called repeatedly during a wait; when it returns True, the wait raises Interrupted.
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
        """Fill `gathered` with every member's `chunk`, in order of rank. In a group of two, a chunk that is already in
        its place is not copied. Raises GroupBroken and Interrupted."""
        size = chunk.numel()
        if self.size == 2:
            # gloo's all-gather allocates another tensor for the whole result, fills that one, and copies it.
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
        """Send to member `to`, which must receive; return when the tensor is on its way. Raises GroupBroken and
        Interrupted."""
        self._wait_aside(self._start("send", [tensor], to, TENSOR), tensor)

    def receive(self, tensor: torch.Tensor, source: int) -> None:
        """Fill `tensor` with the tensor that member `source` sends. Raises GroupBroken and Interrupted."""
        self._wait_aside(self._start("recv", [tensor], source, TENSOR), tensor)

    def drop(self) -> None:
        """Drop the group at once: close its connections, which frees all threads that wait in it, here or in a peer.

        Data that peers have not received yet is lost. So drop a healthy group only after every member has finished with
        it, for instance after the first collective of the next group.
        """
        backend, self._backend = self._backend, None
        if backend is None:
            return
        _standing.discard(self)
        dropped = [backend, self._companions, self._recent]
        del backend
        self._companions = ()
        aside(lambda: self._destroy(dropped), "drop")

    def __del__(self) -> None:
        self.drop()

    def _destroy(self, dropped: list[Any]) -> None:
        """Destroy the backend. `dropped`: the backend, to which no other reference may exist, and objects that must
        outlive it."""
        try:
            unanswered = dropped[0].recv([torch.empty(1)], (self.rank + 1) % self.size, FAREWELL)
            unanswered.wait(timedelta(milliseconds=1))
        except RuntimeError:
            pass  # expected: all connections are closed now
        dropped[0] = None
        dropped.clear()

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
            del backend  # a traceback may keep this frame alive

    def _wait(self, work: Any) -> None:
        while True:
            try:
                work.wait(TICK)
                return
            except RuntimeError:
                if work.is_completed():
                    break
            if self.interrupted():
                raise Interrupted(f"the hub interrupted generation {self.generation}")
        try:
            # The operation may have succeeded after the wait timed out.
            work.wait()
        except RuntimeError as error:
            raise self._broken(error) from error

    def _wait_aside(self, work: Any, tensor: torch.Tensor) -> None:
        """Wait for a point-to-point operation, whose wait must not time out."""
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
                raise Interrupted(f"the hub interrupted generation {self.generation}")
        if failure:
            raise self._broken(failure[0]) from failure[0]

    def _broken(self, error: RuntimeError) -> GroupBroken:
        reason = str(error).partition("\n")[0]
        return GroupBroken(f"generation {self.generation} is broken, a peer is gone: {reason}")


class DeviceGroup(WorkerGroup):
    """A group over NCCL: each member owns one GPU. This class was never run, because it needs two GPUs."""

    def all_gather(self, gathered: torch.Tensor, chunk: torch.Tensor) -> None:
        self._wait(self._start("_allgather_base", gathered, chunk))

    def _wait(self, work: Any) -> None:
        while not work.is_completed():
            if self.interrupted():
                raise Interrupted(f"the hub interrupted generation {self.generation}")
            time.sleep(0.0002)
        try:
            work.wait()
        except RuntimeError as error:
            raise self._broken(error) from error

    def _wait_aside(self, work: Any, tensor: torch.Tensor) -> None:
        self._wait(work)

    def _destroy(self, dropped: list[Any]) -> None:
        dropped[0].abort()
        dropped[0] = None
        dropped.clear()


class Formation:
    """The formation of one generation's group. A side thread begins to form the group when this object is created."""

    def __init__(  # noqa: PLR0917
        self,
        generation: int,
        rank: int,
        size: int,
        device: torch.device,
        publish: Publish,
        formed: Callable[[], None],
    ) -> None:
        """`publish(key, value)` sends a value to all other members, which get it by `deliver`. `formed()` reports that
        the group is formed. The side thread calls both. A group of one is formed at once, without a thread."""
        self._generation, self._rank, self._size = generation, rank, size
        self._device = device
        self._formed = formed
        self._store = RelayStore(publish)
        self._changed = threading.Condition()
        self._group: WorkerGroup | None = None
        self._failure: Exception | None = None
        self._unwanted = False
        if size == 1:
            self._group = WorkerGroup(None, rank, size, generation)
            formed()
        else:
            _forming.add(self)
            aside(self._form, "formation", forms=True)

    def deliver(self, key: str, value: bytes) -> None:
        """Take a value that another member has published. It may come before this member asks for it."""
        self._store.deliver(key, value)

    def abandon(self) -> None:
        """Give the group up: the side thread ends soon, and a group that is already formed is dropped.

        Has no effect after `result` has returned the group.
        """
        self._store.abandon()
        with self._changed:
            self._unwanted = True
            group, self._group = self._group, None
            self._changed.notify_all()
        if group is not None:
            group.drop()

    def result(self, interrupted: Callable[[], bool]) -> WorkerGroup:
        """Wait for the group, set its `interrupted`, and return it. The caller owns the group from now on.

        Raises GroupBroken when forming the group failed or was abandoned, Interrupted when `interrupted` became true.
        """
        with self._changed:
            while self._group is None:
                if self._failure is not None:
                    raise GroupBroken(f"generation {self._generation} could not form its group: {self._failure}")
                if self._unwanted:
                    raise GroupBroken(f"generation {self._generation} was abandoned")
                if interrupted():
                    raise Interrupted(f"the hub interrupted generation {self._generation}")
                self._changed.wait(TICK.total_seconds())
            group, self._group = self._group, None
        group.interrupted = interrupted
        return group

    def _form(self) -> None:
        kind, make = (DeviceGroup, nccl) if self._device.type == "cuda" else (WorkerGroup, gloo)
        try:
            backend = make(self._store, self._rank, self._size)
        except Exception as error:
            # Catch every exception of the backend, the store or `publish`: without a group the generation fails.
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


_standing: weakref.WeakSet[WorkerGroup] = weakref.WeakSet()
_forming: weakref.WeakSet[Formation] = weakref.WeakSet()
#: Threads that run, or have not quite ended → whether they form a group.
_aside: dict[threading.Thread, bool] = {}


def aside(work: Callable[[], None], purpose: str, *, forms: bool = False) -> None:
    """Run `work` in a daemon thread; an exiting interpreter waits for this thread. `forms`: whether it forms a group.

    A thread inside the backend must not outlive the interpreter: when it leaves the backend, it asks for the
    interpreter's lock.
    """

    # The thread must not remove itself: releasing its last object, a store or a group, still runs code of the backend.
    for gone in [thread for thread in list(_aside) if thread.ident is not None and not thread.is_alive()]:
        _aside.pop(gone, None)
    thread = threading.Thread(target=work, name=f"group-{purpose}", daemon=True)
    _aside[thread] = forms
    try:
        thread.start()
    except RuntimeError:
        # Python 3.12 and later start no threads during exit.
        _aside.pop(thread, None)
        work()


def leave(forming: float = FORMING_EXIT_SECONDS) -> None:
    """Drop all groups, and wait until no thread is inside the backend. `forming`: maximum seconds for threads that form
    a group. An exiting interpreter calls this function. A process that ends without interpreter shutdown need not wait
    for threads that form a group."""
    for formation in list(_forming):
        formation.abandon()
    for group in list(_standing):
        group.drop()
    began = time.monotonic()
    for thread, forms in list(_aside.items()):
        _join(thread, began + (forming if forms else EXIT_SECONDS))


def _join(thread: threading.Thread, until: float) -> None:
    """Wait for a thread, which another thread may be about to start."""
    while thread in _aside:
        try:
            thread.join(max(0.0, until - time.monotonic()))
            return
        except RuntimeError:
            if time.monotonic() > until:
                return
            time.sleep(0.001)


def _forget() -> None:
    """Forget all groups in a forked child: it has the groups of its parent, but not their threads."""
    _forming.clear()
    _standing.clear()
    _aside.clear()


atexit.register(leave)
os.register_at_fork(after_in_child=_forget)
