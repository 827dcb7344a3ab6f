"""The slots of this machine: GPUs as NVML shows them, and CPU cores."""

from __future__ import annotations

import logging
import os

from local_backend.scheduler.model import CPU, GPU, Slot

_log = logging.getLogger(__name__)


def discover(override: int | None = None) -> tuple[Slot, ...]:
    """All slots. With `override` there are exactly that many, all of them CPU slots.

    Otherwise: one slot per GPU (none when NVML is missing or finds none) and one CPU slot per core that this process
    may use.
    """
    if override is not None:
        return cpu_slots(override)
    return (*gpu_slots(), *cpu_slots(usable_cores()))


def cpu_slots(count: int) -> tuple[Slot, ...]:
    """`count` slots for work on the CPU."""
    return tuple(Slot(f"cpu-{number}", CPU) for number in range(count))


def usable_cores() -> int:
    """Cores that this process may run on, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def gpu_slots() -> tuple[Slot, ...]:
    """One slot per GPU; only those in CUDA_VISIBLE_DEVICES when the server was started with that."""
    try:
        import pynvml
    except ImportError:
        return ()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()  # no driver: the ordinary laptop
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        devices = [_text(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    except pynvml.NVMLError as problem:
        _log.warning("the GPUs cannot be listed (%s); going on without them", problem)
        return ()
    finally:
        pynvml.nvmlShutdown()
    kept = visible(devices, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return tuple(Slot(f"gpu-{devices.index(device)}", GPU, device) for device in kept)


def visible(devices: list[str], restriction: str | None) -> list[str]:
    """Those of `devices` (UUIDs) that a CUDA_VISIBLE_DEVICES value leaves, in its order; all when it is None.

    As CUDA reads it: numbers, or beginnings of UUIDs, up to the first that names no device.
    """
    if restriction is None:
        return devices
    kept: list[str] = []
    for word in (word.strip() for word in restriction.split(",")):
        if word.isdecimal() and int(word) < len(devices):
            found = devices[int(word)]
        else:
            named = [device for device in devices if word and device.startswith(word)]
            if len(named) != 1:
                break
            found = named[0]
        if found not in kept:
            kept.append(found)
    return kept


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
