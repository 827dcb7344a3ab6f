"""The identity of the machine's current boot."""

from __future__ import annotations

from pathlib import Path

import psutil


def boot_id() -> str:
    """Return an id that changes with every boot of the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return str(int(psutil.boot_time()))
