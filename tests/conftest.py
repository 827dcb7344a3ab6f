"""Fixtures shared by all tests."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

if TYPE_CHECKING:
    from postgres_server import PostgresServer
    from rabbit_server import Rabbit

#: Folders whose tests take longest.
LONG = ("end_to_end", "console", "faults", "runtime", "elastic")

# The tests start hundreds of interpreters: let them share compiled modules.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# A command with another value than this process needs an interpreter of its own (tests/commands.py).
os.environ.pop("PYTHONUNBUFFERED", None)

# A shell starts a background job with SIGINT ignored. The tests send this signal to processes that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The speed and the load of the machine are not properties of the product.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_configure(config: pytest.Config) -> None:
    """Exclude slow tests unless `-m` names them."""
    if config.option.markexpr == "integration":
        config.option.markexpr = "integration and not slow"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import the many modules without a test of the tier `integration` when only these are asked for."""
    if config.option.markexpr != "integration and not slow" or not collection_path.match("test_*.py"):
        return None
    sources = [path for path in (collection_path, collection_path.with_name("conftest.py")) if path.exists()]
    return None if any(b"mark.integration" in path.read_bytes() for path in sources) else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the folders with the longest tests first: the last tests are short, so all workers end at the same time."""
    items.sort(key=lambda item: LONG.index(folder) if (folder := item.path.parent.name) in LONG else len(LONG))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector, which otherwise takes half of the time in every worker. Let it run less
    often in the tests, too: it takes 5% of their time at its defaults."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)


def pytest_xdist_auto_num_workers() -> int | None:
    """Return the number of workers for `-n auto`: cores + 2, because most tests wait for processes they start."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None  # xdist uses the variable
    return (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1) + 2


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server. Tests are skipped where none can run."""
    pytest.importorskip("psycopg", reason="psycopg is not installed (extra postgres)")
    from postgres_server import NotThere, serving

    try:
        with serving() as server:
            yield server
    except NotThere as problem:
        pytest.skip(str(problem))


@pytest.fixture(scope="session")
def broker() -> Iterator[Rabbit]:
    """A RabbitMQ broker. Tests are skipped where none is installed. A test that kills the broker starts it again."""
    pytest.importorskip("pika", reason="pika is not installed (extra rabbitmq)")
    from rabbit_server import NotThere, brokering

    try:
        with brokering() as found:
            yield found
    except NotThere as problem:
        pytest.skip(str(problem))
