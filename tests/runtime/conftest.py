"""Backends for the tests of the runtime."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from runtime_support import Bench, bench


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[Bench]:
    """A backend that starts every program with its own interpreter."""
    with bench(tmp_path) as one:
        yield one


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A shared backend with a nursery: the nursery takes seconds to become ready."""
    with bench(tmp_path_factory.mktemp("warm"), nursery_idle=600.0) as one:
        yield one


@pytest.fixture(scope="session")
def cold(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A shared backend without a nursery."""
    with bench(tmp_path_factory.mktemp("cold")) as one:
        yield one
