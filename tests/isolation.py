"""Whether this machine can isolate jobs. Tests of servers for a team that run jobs need it."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import pytest
from runtime_support import settings_for

from local_backend.serving.isolation import trouble


@cache
def missing() -> str | None:
    """Return why no sandbox can be made here; None if it can."""
    with tempfile.TemporaryDirectory() as folder:
        return trouble(settings_for(Path(folder) / "home", embedded=False))


def needed() -> None:
    """Skip the test if no sandbox can be made here."""
    why = missing()
    if why is not None:
        pytest.skip(f"jobs cannot be isolated on this machine: {why}")
