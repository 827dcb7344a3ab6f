"""States as bytes: the result of a training on its way from a worker into the script's own objects, and others."""

from __future__ import annotations

import io
from dataclasses import replace

import torch

from local_backend.elastic.job import Job
from local_backend.elastic.replica import Replica, State


def result_of(job: Job) -> bytes:
    """All that training has changed in model, loss, optimizer and callbacks."""
    # What asynchronous training adds is of no use after it.
    replica = Replica(replace(job, outer=None))
    return to_bytes(replica.copy(replica.capture()))


def take_over(job: Job, result: bytes) -> None:
    """Make the script's objects what they are in the worker that `result_of` was called in; each stays where it is, on
    its device. Raises EngineError when callbacks have added parameters to the model."""
    Replica(job).restore(from_bytes(result))


def to_bytes(state: State) -> bytes:
    """A state whose tensors are on the CPU, for `from_bytes`."""
    buffer = io.BytesIO()
    torch.save({"meta": state.meta, "tensors": state.tensors}, buffer)
    return buffer.getvalue()


def from_bytes(blob: bytes) -> State:
    """Inverse of `to_bytes`."""
    return State(**torch.load(io.BytesIO(blob), weights_only=True))
