"""The store by which the members of a generation find each other: the hub relays its values.

torch's own store is a server with clients. Each client costs a reverse name lookup and waits that cannot be ended. Here
the store of each member is a dictionary. A member publishes its own values to the other members through the hub. The
member waits for their values on a condition, and `abandon` ends this wait.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import ProcessGroupGloo, Store

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
