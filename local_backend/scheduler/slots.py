"""The slots of this machine: GPUs or their MIG slices, as NVML reports them, and CPU cores."""

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
    """Return all slots. With `override`, return exactly that many CPU slots and no others.

    Otherwise return one slot per GPU or MIG slice (none when NVML is missing or finds no GPU), and one CPU slot per
    core that this process may use.
    """
    if override is not None:
        return cpu_slots(override)
    return (*gpu_slots(), *cpu_slots(usable_cores()))


def cpu_slots(count: int) -> tuple[Slot, ...]:
    """Return `count` CPU slots."""
    return tuple(Slot(f"cpu-{number}", CPU) for number in range(count))


def usable_cores() -> int:
    """Return the number of cores that this process may run on, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def gpu_slots() -> tuple[Slot, ...]:
    """Return the slots of all GPUs, or only of those in CUDA_VISIBLE_DEVICES if the server was started with that."""
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
    """Yield the initialized NVML module. Yield None without NVML or a driver, as on an ordinary laptop."""
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
    """Yield the UUID and slots of every GPU that answers."""
    try:
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as problem:
        _log.error("cannot count the GPUs: %s; continuing without GPUs", problem)
        return
    for index in range(count):
        try:
            yield _slots_of(nvml, index)
        except nvml.NVMLError as problem:
            _log.error("cannot use GPU %d: %s", index, problem)


def _slots_of(nvml: ModuleType, index: int) -> tuple[str, tuple[Slot, ...]]:
    """Return the UUID and slots of a GPU: the GPU itself, or its slices in MIG mode. Raises NVMLError."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    device = text(nvml.nvmlDeviceGetUUID(handle))
    if not _is_cut(nvml, handle):
        return device, (Slot(f"gpu-{index}", GPU, device),)
    slots = []
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
        except nvml.NVMLError:
            continue  # no MIG device has this number
        slots.append(Slot(f"gpu-{index}-mig-{number}", _profile(nvml, part), text(nvml.nvmlDeviceGetUUID(part))))
    return device, tuple(slots)


def _is_cut(nvml: ModuleType, handle: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE)
    except nvml.NVMLError:
        return False  # this GPU does not support MIG


def _profile(nvml: ModuleType, part: Any) -> str:
    """Return the profile of a MIG slice, from its device name if possible: `NVIDIA H200 MIG 1g.18gb`."""
    match = re.search(r"MIG (\S+)$", text(nvml.nvmlDeviceGetName(part)))
    if match:
        return match[1].lower()
    facts = nvml.nvmlDeviceGetAttributes(part)
    return f"{facts.gpuInstanceSliceCount}g.{round(facts.memorySizeMB / 1024)}gb"


def visible(devices: Sequence[str], restriction: str | None, named: Sequence[str] = ()) -> list[str]:
    """Return the `devices` (UUIDs) that a CUDA_VISIBLE_DEVICES value selects, in its order; all devices for None.

    The value is read as CUDA reads it: indices or UUID prefixes, up to the first word that selects no device. UUID
    prefixes select from `named` if it is given.
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
    """Return a text of NVML as `str`; older bindings return bytes."""
    return value.decode() if isinstance(value, bytes) else value
