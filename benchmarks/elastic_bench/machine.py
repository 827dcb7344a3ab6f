"""What the machine has: slots for workers, and the environment that all sides share."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache

#: Workers on the CPU, at most. They may be more than there are cores.
CPU_SLOTS = 4


@dataclass(frozen=True)
class Slot:
    """A place for one worker; `gpu` is the value of CUDA_VISIBLE_DEVICES there."""

    id: str
    kind: str
    gpu: str


@cache
def slots() -> tuple[Slot, ...]:
    """One per GPU where there is one, else CPU_SLOTS."""
    # Counting through NVML creates no CUDA context in this process.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus:
        return tuple(Slot(f"gpu-{i}", "gpu", str(i)) for i in range(gpus))
    return tuple(Slot(f"cpu-{i}", "cpu", "") for i in range(CPU_SLOTS))


def lack(workers: int) -> str | None:
    """Why that many workers cannot run here, None when they can."""
    if workers <= len(slots()):
        return None
    return f"needs {workers} GPUs, and there are {len(slots())}"


def environment(**extra: str) -> dict[str, str]:
    """Of a process that is measured: one thread, nothing of a job around."""
    own = {key: value for key, value in os.environ.items() if not key.startswith(("DLI_", "FABRIC_", "BENCH_"))}
    return {**own, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **extra}
