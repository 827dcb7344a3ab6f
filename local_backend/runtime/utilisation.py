"""How busy the GPUs are, as NVML says. Whoever asks is never kept waiting by a device in trouble."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

#: Seconds that a reading counts as new, and that a call waits for one.
_NEW = 0.5
_PATIENCE = 0.3


class Use(NamedTuple):
    """What a GPU says of itself."""

    #: Part of the last moments, 0 to 1, in which it computed.
    busy: float
    #: Bytes of its memory that are in use; 0 where it has none of its own.
    memory: int


class Utilisation:
    """Reads the devices in a thread of its own, one reading at a time; NVML is started once. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nvml: Any = None
        self._reader: threading.Thread | None = None
        self._began = 0.0
        self._found: dict[str, Use] = {}

    def of(self, devices: Iterable[str]) -> dict[str, Use]:
        """How much each of these devices (UUIDs) is used; without those that do not say so now."""
        wanted = sorted(set(devices))
        if not wanted:
            return {}
        with self._lock:
            reader = self._reader
            if reader is None or (not reader.is_alive() and time.monotonic() - self._began > _NEW):
                self._began = time.monotonic()
                reader = self._reader = threading.Thread(
                    target=self._read, args=(wanted,), name="utilisation", daemon=True
                )
                reader.start()
        reader.join(_PATIENCE)
        return {} if reader.is_alive() else dict(self._found)

    def _read(self, devices: list[str]) -> None:
        found = {}
        if self._nvml is None:
            self._nvml = _start()
        for device in devices if self._nvml is not None else ():
            try:
                handle = self._nvml.nvmlDeviceGetHandleByUUID(device)
                found[device] = Use(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100, self._memory(handle))
            except self._nvml.NVMLError:
                continue  # a part of a GPU does not tell, a lost one cannot
        self._found = found

    def _memory(self, handle: Any) -> int:
        try:
            return int(self._nvml.nvmlDeviceGetMemoryInfo(handle).used)
        except self._nvml.NVMLError:
            return 0  # a GPU that shares the machine's memory does not count it


def _start() -> Any:
    """The NVML module, ready; None where there is none."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml
