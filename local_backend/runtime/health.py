"""Monitors the GPUs: a GPU that is lost, has errors, or is full of other programs' memory is taken out of service.

Conditions, and when the GPU returns to service:

- The GPU does not answer, or its memory has rows that wait for a reset or cannot be repaired: when that ends.
- Uncorrectable memory errors or a critical Xid error occurred since server start: after a restart of the server.
- At least 90% of its memory is in use while no job of this server is on it: when that ends.

Xid errors that programs cause themselves do not count.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from local_backend.runtime.loop import Backoff, Loop
from local_backend.scheduler.model import Slot
from local_backend.scheduler.slots import opened, text

_log = logging.getLogger(__name__)
#: Seconds between two checks.
EVERY = 10.0
#: A GPU without a job of this server is not used if at least this fraction of its memory is in use.
FULL = 0.9
#: Xid errors of the program, not of the GPU (NVIDIA, "XID Errors"): exceptions in kernels, page faults, stopped or
#: preempted channels.
OF_PROGRAMS = frozenset({13, 31, 43, 45, 68, 109})
#: Maximum milliseconds of one wait for an error event, so that a closing server does not wait for the thread.
_PATIENCE = 500


class Health:
    """Monitors the GPUs in its own loop, because a faulty GPU driver may block. Does nothing without GPUs."""

    def __init__(self, slots: Iterable[Slot], every: float = EVERY) -> None:
        #: Slots that must not be used → short reason. Always replaced as a whole.
        self.drained: Mapping[str, str] = {}
        self._slots = [slot for slot in slots if slot.device]
        self._held: Callable[[], Collection[str]] = frozenset
        self._changed: Callable[[], None] = lambda: None
        self._every = every
        self.loop = Loop("health", self._turn, session=self._session, backoff=Backoff(first=every))
        #: The open NVML, its event set for critical errors (None where the driver supports none), and when the next
        #: check is due (monotonic).
        self._nvml: ModuleType | None = None
        self._events: Any = None
        self._check_at = 0.0
        #: Uncorrectable errors that a device had at first, and its last critical error, by UUID.
        self._errors: dict[str, int] = {}
        self._xids: dict[str, int] = {}

    def start(self, held: Callable[[], Collection[str]], changed: Callable[[], None]) -> None:
        """Start monitoring. `held` returns the ids of the slots that jobs hold. The thread calls `changed` when
        `drained` has changed."""
        self._held, self._changed = held, changed
        if self._slots:
            self.loop.start()

    def close(self) -> None:
        """Stop monitoring; do not wait for the thread to end."""
        self.loop.stop(wait=0)

    @contextmanager
    def _session(self) -> Iterator[None]:
        """Keep NVML open within the block. Only a new session may see a lost GPU again. Raises OSError when the GPU
        driver does not answer."""
        with opened() as nvml:
            if nvml is None:
                raise OSError("the GPU driver does not answer")
            self._nvml, self._events, self._check_at = nvml, self._subscribe(nvml), 0.0
            try:
                yield
            finally:
                self._nvml = self._events = None

    def _turn(self, _ready: Set[int]) -> float:
        """Check the GPUs if that is due, then wait a moment for a critical error."""
        assert self._nvml is not None
        if time.monotonic() >= self._check_at:
            self._look(self._nvml)
            self._check_at = time.monotonic() + self._every
        if self._events is None:
            return self._check_at
        if self._critical(self._nvml):
            self._check_at = 0.0
        return time.monotonic()

    def _look(self, nvml: ModuleType) -> None:
        found = {slot.id: why for slot in self._slots if (why := self._fault(nvml, slot))}
        if found != self.drained:
            for slot, why in sorted(found.items() - self.drained.items()):
                _log.error("%s is out of service: %s", slot, why)
            for slot in sorted(self.drained.keys() - found.keys()):
                _log.warning("%s is in service again", slot)
            self.drained = found
            self._changed()

    def _fault(self, nvml: ModuleType, slot: Slot) -> str | None:
        """Return why a slot must not be used; None if it may be used."""
        held = slot.id in self._held()  # read before the memory: memory of a job that ends in between is not foreign
        try:
            device = nvml.nvmlDeviceGetHandleByUUID(slot.device)
            memory = nvml.nvmlDeviceGetMemoryInfo(device)
            device = _whole(nvml, device)
            name = text(nvml.nvmlDeviceGetUUID(device))
        except nvml.NVMLError as problem:
            return f"the GPU does not answer: {problem}"
        if name in self._xids:
            return f"Xid error {self._xids[name]}"
        if not held and memory.total and memory.used >= FULL * memory.total:
            return f"{memory.used / memory.total:.0%} of its memory is used by other processes"
        return _broken_rows(nvml, device) or self._new_errors(nvml, device, name)

    def _new_errors(self, nvml: ModuleType, device: Any, name: str) -> str | None:
        try:
            count = nvml.nvmlDeviceGetTotalEccErrors(
                device, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
            )
        except nvml.NVMLError:
            return None  # GPU memory without error correction
        new = count - self._errors.setdefault(name, count)
        return f"{new} uncorrectable memory error{'s' if new != 1 else ''}" if new > 0 else None

    def _subscribe(self, nvml: ModuleType) -> Any:
        """Return an NVML event set for critical errors; None where the driver supports none."""
        try:
            events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError:
            return None
        for slot in self._slots:
            try:
                device = _whole(nvml, nvml.nvmlDeviceGetHandleByUUID(slot.device))
                nvml.nvmlDeviceRegisterEvents(device, nvml.nvmlEventTypeXidCriticalError, events)
            except nvml.NVMLError:
                continue  # no events from this device
        return events

    def _critical(self, nvml: ModuleType) -> bool:
        """Wait until the next check is due, but not longer than _PATIENCE, or until a critical error occurs. Note the
        error, and return whether there is one."""
        left = max(0.0, self._check_at - time.monotonic())
        try:
            event = nvml.nvmlEventSetWait_v2(self._events, min(_PATIENCE, int(left * 1000) + 1))
        except nvml.NVMLError_Timeout:
            return False
        except nvml.NVMLError:
            self._events = None
            return False
        if event.eventData in OF_PROGRAMS:
            return False
        self._xids[text(nvml.nvmlDeviceGetUUID(event.device))] = int(event.eventData)
        return True


def _whole(nvml: ModuleType, device: Any) -> Any:
    """Return the GPU that a MIG slice belongs to; return a GPU itself."""
    try:
        return nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)
    except nvml.NVMLError:
        return device


def _broken_rows(nvml: ModuleType, device: Any) -> str | None:
    try:
        _, _, pending, failed = nvml.nvmlDeviceGetRemappedRows(device)
    except nvml.NVMLError:
        return None  # an older GPU
    if failed:
        return "its memory has errors that cannot be repaired"
    return "its memory has errors, and the GPU needs a reset" if pending else None
