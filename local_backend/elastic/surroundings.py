"""Settings of torch that training needs so that the same numbers come out everywhere, put back afterwards."""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps

import numpy as np
import torch

from local_backend.elastic import early_seeding


def choose_device() -> torch.device:
    """The one GPU that this process may see, else the CPU."""
    # cuBLAS reads this when it starts; without it its sums differ from run to run.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


#: The function of torch, which notes nothing. The engine sets threads by it.
_set_num_threads = torch.set_num_threads
_threads_at_import: int | None = None
#: What the script has set by `torch.set_num_threads` since it imported FabricModel.
_threads_of_script: int | None = None


def watch_threads() -> None:
    """Note the numbers of threads that the script sets from now on."""
    global _threads_at_import
    if _threads_at_import is not None:
        return
    _threads_at_import = torch.get_num_threads()

    @wraps(_set_num_threads)
    def set_num_threads(number: int) -> None:
        global _threads_of_script
        _set_num_threads(number)
        _threads_of_script = torch.get_num_threads()

    torch.set_num_threads = set_num_threads  # type: ignore[assignment]


def thread_count() -> int:
    """Return the threads of one worker: what the script has set since it imported FabricModel, else OMP_NUM_THREADS,
    else 1. The machine does not count, for how sums are cut depends on the number."""
    if _threads_of_script is not None:
        return _threads_of_script
    if _threads_at_import not in (None, torch.get_num_threads()):
        return torch.get_num_threads()
    text = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return max(1, int(text)) if text.isdigit() else 1


@contextmanager
def reproducible(count: int, exact: bool = True) -> Iterator[None]:
    """Within: `count` threads (the same number in every worker, on every machine: the driver's) and, when it is to be
    `exact`, deterministic algorithms (a warning where an operation has none).

    Afterwards settings and random number generators are as they were: the caller may be the user's own process.
    """
    global _threads_of_script
    threads, of_script = torch.get_num_threads(), _threads_of_script
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    states = (torch.get_rng_state(), random.getstate(), np.random.get_state())
    numpy_generator = np.random.mtrand.get_bit_generator()
    # NumPy's own one stays apart, for it tells whether the script has seeded it.
    np.random.mtrand.set_bit_generator(np.random.MT19937())
    try:
        _set_num_threads(count)
        if exact:
            torch.use_deterministic_algorithms(True, warn_only=warn_only or not deterministic)
            torch.backends.cudnn.benchmark = False
        with warnings.catch_warnings(), early_seeding.unnoted():
            # Every worker would repeat it for the same line of the user's model.
            warnings.filterwarnings("once", message=".*does not have a deterministic implementation.*")
            yield
    finally:
        _set_num_threads(threads)
        _threads_of_script = of_script
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.backends.cudnn.benchmark = benchmark
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.mtrand.set_bit_generator(numpy_generator)
        np.random.set_state(states[2])
