"""Transfer of a state from a member to members that join: point to point, in few messages, with bounded memory.

The messages are: the length of the next message; a pickle of `meta` with dtype and shape of each tensor; the tensors as
bytes. Small tensors are sent together, large ones directly from their memory. The pickle comes from a process of the
same training.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from local_backend.elastic import faults
from local_backend.elastic.state.replica import ReplicaState

#: Most bytes of small tensors in one message, and least bytes of a tensor that has its own message.
CHUNK = 64 << 20
LARGE = 4 << 20


class Peers(Protocol):
    """The methods of a Group that a transfer needs."""

    def send(self, tensor: Tensor, to: int) -> None: ...

    def receive(self, tensor: Tensor, source: int) -> None: ...


def messages(sizes: Sequence[int], chunk: int = CHUNK, large: int = LARGE) -> Iterator[list[int]]:
    """Yield the indices of the tensors in each message. `sizes` are in bytes; tensors without bytes are left out.

    A message has one tensor of at least `large` bytes, or smaller ones with at most `chunk` bytes together.
    """
    together: list[int] = []
    filled = 0
    for number, size in enumerate(sizes):
        if size >= large:
            yield [number]
        elif size:
            if together and filled + size > chunk:
                yield together
                together, filled = [], 0
            together.append(number)
            filled += size
    if together:
        yield together


def send_state(group: Peers, to: int | Sequence[int], state: ReplicaState) -> None:
    """Send a state to one or several members, which call `receive_state`. Its tensors must not change meanwhile.

    All messages are sent from the device of the first tensor. Raises what `group.send` raises.
    """
    receivers = [to] if isinstance(to, int) else list(to)
    device = state.tensors[0].device if state.tensors else torch.device("cpu")

    def send(message: Tensor) -> None:
        for receiver in receivers:
            group.send(message, receiver)

    head = pickle.dumps((state.meta, [(tensor.dtype, tuple(tensor.shape)) for tensor in state.tensors]))
    send(torch.tensor([len(head)], dtype=torch.int64, device=device))
    send(torch.frombuffer(bytearray(head), dtype=torch.uint8).to(device))
    parts = messages([tensor.nbytes for tensor in state.tensors])
    # All messages use one buffer, because groups keep references to tensors for a while.
    buffer = torch.empty(0, dtype=torch.uint8, device=device)
    for numbers in parts:
        faults.at("state-copy")
        pieces = [as_bytes(state.tensors[number]).to(device) for number in numbers]
        if len(pieces) > 1:
            buffer = _at_least(buffer, sum(map(len, pieces)))
            pieces = [torch.cat(pieces, out=buffer[: sum(map(len, pieces))])]
        send(pieces[0])


def receive_state(group: Peers, source: int, device: torch.device) -> ReplicaState:
    """Receive the state that member `source` sends, on `device`. Raises what `group.receive` raises."""
    length = torch.empty(1, dtype=torch.int64, device=device)
    group.receive(length, source)
    faults.at("receiving")
    head = torch.empty(int(length.item()), dtype=torch.uint8, device=device)
    group.receive(head, source)
    meta, kinds = pickle.loads(head.cpu().numpy().tobytes())
    tensors = [torch.empty(shape, dtype=dtype, device=device) for dtype, shape in kinds]
    buffer = torch.empty(0, dtype=torch.uint8, device=device)
    for numbers in messages([tensor.nbytes for tensor in tensors]):
        pieces = [as_bytes(tensors[number]) for number in numbers]
        if len(pieces) == 1:
            group.receive(pieces[0], source)
            continue
        buffer = _at_least(buffer, sum(map(len, pieces)))
        message = buffer[: sum(map(len, pieces))]
        group.receive(message, source)
        for piece, part in zip(pieces, message.split(list(map(len, pieces))), strict=True):
            piece.copy_(part)
    return ReplicaState(meta, tensors)


class Sending(threading.Thread):
    """A thread that sends a state in the background. It starts when it is created."""

    def __init__(self, group: Peers, to: Sequence[int], state: ReplicaState) -> None:
        super().__init__(name="state-copy", daemon=True)
        self._work = (group, to, state)
        self._failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            send_state(*self._work)
        except BaseException as error:
            self._failure = error
        finally:
            del self._work

    def join(self, timeout: float | None = None) -> None:
        """Wait at most `timeout` seconds until all is sent; then see `is_alive()`. Raises the error of the transfer."""
        super().join(timeout)
        if self._failure is not None and not self.is_alive():
            raise self._failure


def as_bytes(tensor: Tensor) -> Tensor:
    """Return the flat bytes of a tensor, in place if it is contiguous."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _at_least(buffer: Tensor, size: int) -> Tensor:
    return buffer if len(buffer) >= size else torch.empty(size, dtype=torch.uint8, device=buffer.device)
