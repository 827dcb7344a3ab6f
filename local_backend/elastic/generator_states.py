"""States of the global random number generators: of `random`, of numpy and of torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

# The functions themselves: `seeding` notes when user code calls those of the modules.
from random import getstate, setstate
from typing import Any

import torch
from numpy.random import get_state, set_state

#: What `capture` returns.
States = tuple[Any, ...]


def capture() -> States:
    """Return the states of all global generators."""
    on_gpu = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return getstate(), get_state(), torch.default_generator.get_state(), on_gpu


def restore(states: States) -> None:
    """Put all global generators into these states."""
    python, numpy, on_cpu, on_gpu = states
    setstate(python)
    set_state(numpy)
    torch.default_generator.set_state(on_cpu)
    if on_gpu:
        torch.cuda.set_rng_state_all(on_gpu)


@contextmanager
def kept() -> Iterator[None]:
    """Leave the global generators as they were, whatever is drawn within."""
    before = capture()
    try:
        yield
    finally:
        restore(before)
