"""Whether this machine can isolate jobs. Tests of isolation need it; other tests of servers for a team do without."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def control_group() -> Iterator[Path]:
    """Yield a control group of the system. Skip the test if none can be made here."""
    lines = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    mounts = [Path(words[4]) for words in lines if words[words.index("-") + 1] == "cgroup2"]
    if os.getuid() != 0 or not mounts:
        pytest.skip("only root can make control groups, on a system with version 2 of them")
    folder = mounts[0] / f"dlicmd-test-{uuid.uuid4().hex[:8]}"
    try:
        folder.mkdir()
    except OSError as problem:
        pytest.skip(f"no control group can be made here: {problem}")
    yield folder
    for left in (*sorted((one for one in folder.rglob("*") if one.is_dir()), reverse=True), folder):
        left.rmdir()
