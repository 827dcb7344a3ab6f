"""Groups of workers that exchange tensors: one group per generation, behind an interface of two operations.

Every process keeps one connection to the store for life (each new store client costs a reverse name lookup), and a
group is a prefix on it. Store and gloo listen on the loopback only.
"""

from __future__ import annotations

import importlib
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore

from local_backend.elastic.errors import GroupBroken

LOOPBACK = "127.0.0.1"
#: Nobody waits for this: the hub notices the dead and says so long before.
NO_TIMEOUT = timedelta(days=7)


class StoreHost:
    """The driver's end: the store that workers meet at."""

    def __init__(self) -> None:
        listener = socket.socket()
        listener.bind((LOOPBACK, 0))
        listener.listen(128)
        self.port: int = listener.getsockname()[1]
        # Handing the socket over is the only way to make the store listen on the loopback alone.
        self._store: TCPStore | None = TCPStore(
            LOOPBACK, self.port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )

    def close(self) -> None:
        """Stop listening. Groups that were formed stay as they are."""
        self._store = None


class Group:
    """The members of one generation; `rank` is the position of this process in it."""

    def __init__(self, backend: Any, rank: int, size: int) -> None:
        self._backend = backend
        self.rank = rank
        self.size = size

    def all_to_all(
        self, received: torch.Tensor, sent: torch.Tensor, in_sizes: Sequence[int], out_sizes: Sequence[int]
    ) -> None:
        """Send `out_sizes[m]` elements of the flat tensor `sent` to each member m, and fill `received` with
        `in_sizes[m]` elements from each. Raises GroupBroken."""
        self._finish(lambda: self._backend.alltoall_base(received, sent, list(in_sizes), list(out_sizes)))

    def all_gather(self, gathered: torch.Tensor, chunk: torch.Tensor) -> None:
        """Fill the flat tensor `gathered` with every member's `chunk`, in order of rank. Raises GroupBroken."""
        self._finish(lambda: self._backend._allgather_base(gathered, chunk))

    def drop(self) -> None:
        """Let go: closes the connections, which frees peers that wait for this process."""
        self._backend = None

    def _finish(self, start: Any) -> None:
        try:
            start().wait()
        except RuntimeError as error:
            raise GroupBroken(f"a collective failed, a peer is gone: {str(error).splitlines()[0]}") from error


class Meeting:
    """A worker's end of the store; forms one group per generation."""

    def __init__(self, port: int) -> None:
        self._store = TCPStore(LOOPBACK, port, is_master=False, wait_for_workers=False)

    def form(self, generation: int, rank: int, size: int, device: torch.device) -> Group:
        """The group of this generation; returns when all `size` members are here. Raises GroupBroken."""
        store = PrefixStore(f"generation-{generation}", self._store)
        make = _nccl if device.type == "cuda" else _gloo
        try:
            return Group(make(store, rank, size), rank, size)
        except RuntimeError as error:
            raise GroupBroken(f"generation {generation} could not meet: {str(error).splitlines()[0]}") from error


def _gloo(store: PrefixStore, rank: int, size: int) -> Any:
    backend: Any = ProcessGroupGloo
    options = backend._Options()
    options._devices = [backend.create_device(hostname=LOOPBACK)]
    options._timeout = NO_TIMEOUT
    return backend(store, rank, size, options)


def _nccl(store: PrefixStore, rank: int, size: int) -> Any:
    """Each member owns a device, seen as cuda:0. Not exercised by any test without two GPUs."""
    backend: Any = importlib.import_module("torch.distributed").ProcessGroupNCCL
    options = backend.Options()
    options._timeout = NO_TIMEOUT
    return backend(store, rank, size, options)
