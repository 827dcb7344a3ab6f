"""How the members of a generation find each other: by values that the hub passes on.

torch's own store is a server with clients, each of which costs a reverse name lookup and waits that cannot be ended.
Here the store of a member is a dictionary: what it sets is published to the other members through the hub, and it waits
for theirs on a condition, which `abandon` ends.
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
#: Limit of each connection while a group forms; gloo waits five times as long. A thread whose peer was killed between
#: its value and its connections stays that long, wanted by nobody.
CONNECT_TIMEOUT = timedelta(seconds=6)
#: Nobody waits for this: the hub notices the dead and says so long before.
NO_TIMEOUT = timedelta(days=7)

#: The hub notices the dead; NCCL must neither end survivors nor use multicast slots, which groups leave behind.
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
    """Nobody wants the group any more."""


class RelayStore(Store):
    """A store whose values travel through the hub."""

    def __init__(self, publish: Publish) -> None:
        super().__init__()
        self._publish = publish
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._abandoned = False

    def set(self, key: str, value: str | bytes) -> None:
        """Called by the backend."""
        value = value.encode() if isinstance(value, str) else bytes(value)
        self.deliver(key, value)
        self._publish(key, value)

    def get(self, key: str) -> bytes:
        """Called by the backend; waits for the value. Raises Abandoned."""
        with self._changed:
            self._changed.wait_for(lambda: self._abandoned or key in self._values)
            if self._abandoned:
                raise Abandoned(f"the rendezvous was abandoned before {key} came")
            return self._values[key]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Called by the backend. Its timeout would start long before slow members are there. Raises Abandoned."""
        for key in keys:
            self.get(key)

    def check(self, keys: list[str]) -> bool:
        """Called by the backend."""
        with self._changed:
            return all(key in self._values for key in keys)

    def deliver(self, key: str, value: bytes) -> None:
        """A value has come."""
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def abandon(self) -> None:
        """Whoever waits, or will, gets Abandoned."""
        with self._changed:
            self._abandoned = True
            self._changed.notify_all()


def gloo(store: RelayStore, rank: int, size: int) -> Any:
    """A backend between the CPUs of this machine, with all connections made."""
    backend: Any = ProcessGroupGloo
    options = backend._Options()
    options._devices = [backend.create_device(hostname=LOOPBACK)]
    options._timeout = CONNECT_TIMEOUT
    group = backend(store, rank, size, options)
    group._set_default_timeout(NO_TIMEOUT)
    return group


def nccl(store: RelayStore, rank: int, size: int) -> Any:
    """Each member owns a device, seen as cuda:0. Never run: it takes two GPUs."""
    # NCCL's watchdog ends the process whose peer has died, unless it is told not to.
    for name, value in NCCL_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    backend: Any = importlib.import_module("torch.distributed").ProcessGroupNCCL
    options = backend.Options()
    options._timeout = NO_TIMEOUT
    options.config.blocking = 0
    group = backend(store, rank, size, options)
    group.eager_connect_single_device(torch.device("cuda", 0))
    return group
