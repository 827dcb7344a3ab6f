"""Settings of torch that make training give the same numbers on every worker and machine; restored afterwards."""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps

import numpy as np
import torch

from local_backend.elastic.script import early_seeding


def choose_device() -> torch.device:
    """Return the one GPU that this process may see, else the CPU."""
    # cuBLAS reads this variable when it starts. Without it, the sums of cuBLAS differ from run to run.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


#: The original function of torch, which records nothing. The engine sets threads with it.
_set_num_threads = torch.set_num_threads
_threads_at_import: int | None = None
#: The number that the script has set by `torch.set_num_threads` since it imported FabricModel.
_threads_of_script: int | None = None


def watch_threads() -> None:
    """Record the numbers of threads that the script sets from now on."""
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
    """Return the number of threads of one worker.

    It is the number that the script has set since it imported FabricModel, else OMP_NUM_THREADS, else 1. It does not
    depend on the machine, because it determines how sums are split.
    """
    if _threads_of_script is not None:
        return _threads_of_script
    if _threads_at_import not in (None, torch.get_num_threads()):
        return torch.get_num_threads()
    text = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return max(1, int(text)) if text.isdigit() else 1


def interpret_scripts() -> None:
    """Run TorchScript in this thread as it is written. torch would optimize a function after its first call, and its
    gradients would get other bits, so a result would depend on the number of calls in a process. A function that has
    been optimized stays so. Call this before the script calls any."""
    torch._C._set_graph_executor_optimize(False)


@contextmanager
def reproducible(count: int, exact: bool = True) -> Iterator[None]:
    """Within the context, use `count` threads and, if `exact`, deterministic algorithms and TorchScript as written.

    `count` is the driver's number of threads, the same in every worker on every machine. An operation without a
    deterministic algorithm causes a warning. Afterwards settings and random number generators are restored, because the
    caller may be the user's own process.
    """
    global _threads_of_script
    threads, of_script = torch.get_num_threads(), _threads_of_script
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark, optimized = torch.backends.cudnn.benchmark, torch._C._get_graph_executor_optimize()
    states = (torch.get_rng_state(), random.getstate(), np.random.get_state())
    numpy_generator = np.random.mtrand.get_bit_generator()
    # NumPy's own generator is set aside, because its state shows whether the script has seeded it.
    np.random.mtrand.set_bit_generator(np.random.MT19937())
    try:
        _set_num_threads(count)
        torch._C._set_graph_executor_optimize(not exact)
        if exact:
            torch.use_deterministic_algorithms(True, warn_only=warn_only or not deterministic)
            torch.backends.cudnn.benchmark = False
        with warnings.catch_warnings(), early_seeding.unnoted():
            # Otherwise every worker would repeat the warning for the same line of the user's model.
            warnings.filterwarnings("once", message=".*does not have a deterministic implementation.*")
            yield
    finally:
        _set_num_threads(threads)
        _threads_of_script = of_script
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.backends.cudnn.benchmark = benchmark
        torch._C._set_graph_executor_optimize(optimized)
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.mtrand.set_bit_generator(numpy_generator)
        np.random.set_state(states[2])
