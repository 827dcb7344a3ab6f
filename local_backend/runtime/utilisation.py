"""Utilization of the GPUs, from NVML. A GPU that does not respond blocks a caller for a fraction of a second at
most."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

#: Seconds that a reading counts as new, and seconds that a call waits for one.
_NEW = 0.5
_PATIENCE = 0.3


class Use(NamedTuple):
    """Utilization of a GPU as the GPU reports it."""

    #: Fraction of the last sample period, 0 to 1, in which the GPU computed.
    busy: float
    #: Used bytes of GPU memory; 0 if the GPU has no memory of its own.
    memory: int


class Utilisation:
    """Reads the devices in its own thread, one reading at a time; NVML is started once. Call from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nvml: Any = None
        self._reader: threading.Thread | None = None
        self._began = 0.0
        self._found: dict[str, Use] = {}

    def of(self, devices: Iterable[str]) -> dict[str, Use]:
        """Return the use of each of these devices (UUIDs), without devices that give no answer now."""
        wanted = sorted(set(devices))
        if not wanted:
            return {}
        reader = self.begin(wanted)
        reader.join(_PATIENCE)
        return {} if reader.is_alive() else self.latest

    def begin(self, devices: Iterable[str]) -> threading.Thread:
        """Begin to read these devices (UUIDs), unless a reading is under way or new. Return the thread that reads."""
        with self._lock:
            reader = self._reader
            if reader is None or (not reader.is_alive() and time.monotonic() - self._began > _NEW):
                self._began = time.monotonic()
                reader = self._reader = threading.Thread(
                    target=self._read, args=(sorted(set(devices)),), name="utilisation", daemon=True
                )
                reader.start()
        return reader

    @property
    def latest(self) -> dict[str, Use]:
        """The last complete reading."""
        return dict(self._found)

    def _read(self, devices: list[str]) -> None:
        found = {}
        if self._nvml is None:
            self._nvml = _start()
        for device in devices if self._nvml is not None else ():
            try:
                handle = self._nvml.nvmlDeviceGetHandleByUUID(device)
                found[device] = Use(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100, self._memory(handle))
            except self._nvml.NVMLError:
                continue  # a MIG slice does not report utilization, a lost GPU cannot
        self._found = found

    def _memory(self, handle: Any) -> int:
        try:
            return int(self._nvml.nvmlDeviceGetMemoryInfo(handle).used)
        except self._nvml.NVMLError:
            return 0  # a GPU that shares the machine's memory does not report it


def _start() -> Any:
    """Return the initialized NVML module; None if it is not available."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml
