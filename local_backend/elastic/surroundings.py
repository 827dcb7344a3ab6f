"""Settings of torch that training needs so that the same numbers come out everywhere, put back afterwards."""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from local_backend.elastic import early_seeding


def choose_device() -> torch.device:
    """The one GPU that this process may see, else the CPU."""
    # cuBLAS reads this when it starts; without it its sums differ from run to run.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def thread_count() -> int:
    """Threads of one worker: OMP_NUM_THREADS, else 1; not by the machine, for how sums are cut depends on it."""
    text = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return max(1, int(text)) if text.isdigit() else 1


@contextmanager
def reproducible(count: int, exact: bool = True) -> Iterator[None]:
    """Within: `count` threads (the same number in every worker, on every machine: the driver's) and, when it is to be
    `exact`, deterministic algorithms (a warning where an operation has none).

    Afterwards settings and random number generators are as they were: the caller may be the user's own process.
    """
    threads = torch.get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    states = (torch.get_rng_state(), random.getstate(), np.random.get_state())
    numpy_generator = np.random.mtrand.get_bit_generator()
    # NumPy's own one stays apart, for it tells whether the script has seeded it.
    np.random.mtrand.set_bit_generator(np.random.MT19937())
    try:
        torch.set_num_threads(count)
        if exact:
            torch.use_deterministic_algorithms(True, warn_only=warn_only or not deterministic)
            torch.backends.cudnn.benchmark = False
        with warnings.catch_warnings(), early_seeding.unnoted():
            # Every worker would repeat it for the same line of the user's model.
            warnings.filterwarnings("once", message=".*does not have a deterministic implementation.*")
            yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.backends.cudnn.benchmark = benchmark
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.mtrand.set_bit_generator(numpy_generator)
        np.random.set_state(states[2])
