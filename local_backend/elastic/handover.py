"""States as bytes, for example the result of a training that a worker sends to the script's process."""

from __future__ import annotations

import io
from dataclasses import replace

import torch

from local_backend.elastic.job import Job
from local_backend.elastic.replica import Replica, State


def result_of(job: Job) -> bytes:
    """Return, as bytes, everything that training has changed in model, loss, optimizer and callbacks."""
    # The outer optimizer of asynchronous training is of no use after the training.
    replica = Replica(replace(job, outer=None))
    return to_bytes(replica.copy(replica.capture()))


def take_over(job: Job, result: bytes) -> None:
    """Give the script's objects the state that they have in the worker that called `result_of`. Each object stays the
    same and on its device. Raises EngineError when callbacks have added parameters to the model."""
    Replica(job).restore(from_bytes(result))


def to_bytes(state: State) -> bytes:
    """Return a state, whose tensors are on the CPU, as bytes for `from_bytes`."""
    buffer = io.BytesIO()
    torch.save({"meta": state.meta, "tensors": state.tensors}, buffer)
    return buffer.getvalue()


def from_bytes(blob: bytes) -> State:
    """Return the state that `to_bytes` was given."""
    return State(**torch.load(io.BytesIO(blob), weights_only=True))
