"""The slots of this machine for workers, and the environment that all sides share."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache

#: Maximum number of workers on the CPU. This may exceed the number of cores.
CPU_SLOTS = 4


@dataclass(frozen=True)
class Slot:
    """A slot for one worker. `gpu` is its value of CUDA_VISIBLE_DEVICES."""

    id: str
    kind: str
    gpu: str


@cache
def slots() -> tuple[Slot, ...]:
    """Return one slot per GPU, or CPU_SLOTS slots on a machine without GPUs."""
    # Counting through NVML creates no CUDA context in this process.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus:
        return tuple(Slot(f"gpu-{i}", "gpu", str(i)) for i in range(gpus))
    return tuple(Slot(f"cpu-{i}", "cpu", "") for i in range(CPU_SLOTS))


def lack(workers: int) -> str | None:
    """Return why this machine cannot run that many workers, None if it can."""
    if workers <= len(slots()):
        return None
    return f"needs {workers} GPUs, and there are {len(slots())}"


def environment(**extra: str) -> dict[str, str]:
    """Return the environment of a measured process: one thread, and no variables of a surrounding job."""
    own = {key: value for key, value in os.environ.items() if not key.startswith(("DLI_", "FABRIC_", "BENCH_"))}
    return {**own, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **extra}
