"""Hashes of training results: equal for tensors and plain values that are equal to the last bit."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from torch import nn


def hash_of(value: Any) -> str:
    """Return a hash over all tensors and plain values in nested dicts, lists, tuples and modules."""
    digest = hashlib.sha256()
    feed(digest, value)
    return digest.hexdigest()


def feed(digest: Any, value: Any) -> None:
    """Add a value to a hash. Of an object of another kind, only the type counts."""
    if isinstance(value, torch.Tensor):
        whole = value.detach().contiguous().reshape(-1)
        digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
        digest.update(whole.view(torch.uint8).numpy().tobytes())
    elif isinstance(value, (np.ndarray, np.generic)):
        digest.update(f"{value.dtype}{value.shape}".encode())
        digest.update(value.tobytes())
    elif isinstance(value, dict):
        for key, item in value.items():
            digest.update(repr(key).encode())
            feed(digest, item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            feed(digest, item)
    elif isinstance(value, nn.Module):
        feed(digest, value.state_dict())
    elif value is None or isinstance(value, (int, float, complex, str, bytes)):
        digest.update(repr(value).encode())
    else:
        digest.update(type(value).__qualname__.encode())
