"""Whether this machine can isolate jobs. Tests of isolation need it; other tests of servers for a team do without."""

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


def environment() -> dict[str, str]:
    """Return the variables with which a server for a team starts here: without isolation if no sandbox can be made."""
    return {} if missing() is None else {"DLI_JOBS_SHARE_SERVER_ACCOUNT": "true"}
