"""The identity of the machine's current boot."""

from __future__ import annotations

import functools
from pathlib import Path

import psutil


@functools.cache
def boot_id() -> str:
    """Return an id that changes with every boot of the machine. Raises OSError when the system cannot tell it now, for
    example because no descriptor is free: another id would look like a reboot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (FileNotFoundError, PermissionError):  # a system or a sandbox without this file
        return str(int(psutil.boot_time()))
