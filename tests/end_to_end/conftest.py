"""A user per test, with nothing left running afterwards."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from user import User


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    user = User(tmp_path / "home")
    yield user
    user.backend("stop", "--jobs")
    leftovers = user.processes()
    for process in leftovers:
        process.kill()
    psutil.wait_procs(leftovers)
    shutil.rmtree(tmp_path, ignore_errors=True)


@pytest.fixture
def warm(user: User) -> User:
    """Has the jobs of `user` start as everybody's do: from a nursery."""
    return user.warm()
