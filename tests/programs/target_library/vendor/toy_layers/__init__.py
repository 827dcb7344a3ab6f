"""A library with a global that each call changes, such as a count for its log."""

import torch

calls = 0


def gated(inner, gate):
    """Return `inner` times the sigmoid of `gate`."""
    global calls
    calls += 1
    return inner * torch.sigmoid(gate)
