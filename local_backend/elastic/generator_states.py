"""States of random number generators: those of `random`, numpy and torch, and the known generators of the user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

# Import the functions: `seeding` replaces them in their modules, to notice when user code calls them.
from random import getstate, setstate
from typing import Any

import torch
from numpy.random import get_state, set_state

from local_backend.elastic import generators
from local_backend.elastic.seeding import own_states

#: The states that `capture` returns.
States = tuple[Any, ...]


def capture() -> States:
    """Return the states of all generators."""
    on_gpu = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return getstate(), get_state(), torch.default_generator.get_state(), on_gpu, own_states()


def restore(states: States) -> None:
    """Set all generators to these states."""
    python, numpy, on_cpu, on_gpu, own = states
    setstate(python)
    set_state(numpy)
    torch.default_generator.set_state(on_cpu)
    if on_gpu:
        torch.cuda.set_rng_state_all(on_gpu)
    generators.restore(own)


@contextmanager
def kept() -> Iterator[None]:
    """Restore all generators after the `with` block, whatever the block draws."""
    before = capture()
    try:
        yield
    finally:
        restore(before)
