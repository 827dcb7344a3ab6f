"""The slots of this machine: GPUs, or MIG slices of them, as NVML shows them, and CPU cores."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from local_backend.scheduler.model import CPU, GPU, Slot

_log = logging.getLogger(__name__)


def discover(override: int | None = None) -> tuple[Slot, ...]:
    """All slots. With `override` there are exactly that many, all of them CPU slots.

    Otherwise: one slot per GPU, or per MIG slice of it (none when NVML is missing or finds none), and one CPU slot per
    core that this process may use.
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
    """The slots of all GPUs; only those in CUDA_VISIBLE_DEVICES when the server was started with that."""
    with opened() as nvml:
        if nvml is None:
            return ()
        found = list(_gpus(nvml))
    devices = [device for device, _ in found]
    slots = dict(found) | {slot.device: (slot,) for _, slots in found for slot in slots}
    kept = visible(devices, os.environ.get("CUDA_VISIBLE_DEVICES"), tuple(slots))
    return tuple(dict.fromkeys(slot for device in kept for slot in slots[device]))


@contextmanager
def opened() -> Iterator[ModuleType | None]:
    """NVML, ready for use; None when it is not installed, or there is no driver: the ordinary laptop."""
    try:
        import pynvml
    except ImportError:
        yield None
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def _gpus(nvml: ModuleType) -> Iterator[tuple[str, tuple[Slot, ...]]]:
    """UUID and slots of every GPU that answers."""
    try:
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as problem:
        _log.error("the GPUs cannot be counted (%s); going on without them", problem)
        return
    for index in range(count):
        try:
            yield _slots_of(nvml, index)
        except nvml.NVMLError as problem:
            _log.error("GPU %d cannot be used: %s", index, problem)


def _slots_of(nvml: ModuleType, index: int) -> tuple[str, tuple[Slot, ...]]:
    """UUID and slots of a GPU: itself, or its slices when it is cut into some. Raises NVMLError."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    device = text(nvml.nvmlDeviceGetUUID(handle))
    if not _is_cut(nvml, handle):
        return device, (Slot(f"gpu-{index}", GPU, device),)
    slots = []
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
        except nvml.NVMLError:
            continue  # nothing has been made of this part of the GPU
        slots.append(Slot(f"gpu-{index}-mig-{number}", _profile(nvml, part), text(nvml.nvmlDeviceGetUUID(part))))
    return device, tuple(slots)


def _is_cut(nvml: ModuleType, handle: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE)
    except nvml.NVMLError:
        return False  # a GPU that cannot be


def _profile(nvml: ModuleType, part: Any) -> str:
    """Profile of a slice, as in the name of the device, `NVIDIA H200 MIG 1g.18gb`."""
    match = re.search(r"MIG (\S+)$", text(nvml.nvmlDeviceGetName(part)))
    if match:
        return match[1].lower()
    facts = nvml.nvmlDeviceGetAttributes(part)
    return f"{facts.gpuInstanceSliceCount}g.{round(facts.memorySizeMB / 1024)}gb"


def visible(devices: Sequence[str], restriction: str | None, named: Sequence[str] = ()) -> list[str]:
    """Those of `devices` (UUIDs) that a CUDA_VISIBLE_DEVICES value leaves, in its order; all when it is None.

    As CUDA reads it: numbers, or beginnings of UUIDs, up to the first that names no device. By their UUIDs those in
    `named` can be chosen, too.
    """
    if restriction is None:
        return list(devices)
    kept: list[str] = []
    for word in (word.strip() for word in restriction.split(",")):
        if word.isdecimal() and int(word) < len(devices):
            found = devices[int(word)]
        else:
            meant = [device for device in named or devices if word and device.startswith(word)]
            if len(meant) != 1:
                break
            found = meant[0]
        if found not in kept:
            kept.append(found)
    return kept


def text(value: str | bytes) -> str:
    """Texts of NVML: bytes in older bindings."""
    return value.decode() if isinstance(value, bytes) else value
