"""Requests for memory, against the memory of the machine."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest
from live_server import Live

from local_backend.runtime.memory import of_machine

GIB = 2**30
SINGLE = "--exec-start PyTorch --model-main main.py"
MANY, ELASTIC = SINGLE.replace("PyTorch", "distPyTorch"), SINGLE.replace("PyTorch", "edtPyTorch")


@pytest.fixture
def small(live: Live) -> Live:
    """A server on a machine with 16 GiB."""
    live.supervisor.memory = 16 * GIB
    return live


@pytest.mark.parametrize("args", [
    f"{SINGLE} --workerMemory 9999g", f"{SINGLE} --workerMemory 16.001g", f"{SINGLE} --workerMemoryLimit 17g",
    f"{SINGLE} --driverMemory 9999g", f"{ELASTIC} --driverMemoryLimit 17g", f"{ELASTIC} --workerMemory 17g",
    f"{SINGLE} --msd-pack-id p --workerMemoryLimit 17g --workerMemory 1g",
    f"{MANY} --numWorker 3 --workerMemory 8g", f"{MANY} --numWorker 1000000000 --workerMemory 1m",
    f"{ELASTIC} --numWorker 4 --workerMemory 8g --msd-attr minWorkers=3",
])
def test_more_memory_than_the_machine_has_is_refused(small: Live, args: str) -> None:
    refused = small.submit(args, {"main.py": b"1"})
    assert refused.error == (400, "submission.never_schedulable") and "16.0G" in refused.text
    assert small.nothing_left()


@pytest.mark.parametrize("nodes", [
    {"mem": {"size": "17g"}}, {"num_nodes": 3, "mem": {"size": "8Gi"}}, {"drivers": {"mem": {"size": "17g"}}},
])
def test_the_hardware_spec_counts_too(small: Live, nodes: object) -> None:
    data = json.dumps({"hardwareSpec": {"nodes": nodes}})
    assert small.submit(MANY, {"main.py": b"1"}, data).error == (400, "submission.never_schedulable")


@pytest.mark.parametrize("args", [
    f"{SINGLE} --workerMemory 16g --driverMemory 16g", f"{MANY} --numWorker 2 --workerMemory 8g",
    f"{ELASTIC} --numWorker 64 --workerMemory 8g --msd-attr minWorkers=2", f"{MANY} --numWorker 64",
])
def test_memory_that_the_machine_can_give_is_accepted(small: Live, args: str) -> None:
    assert small.submitted(args)


def test_nothing_is_refused_while_the_memory_is_unknown(live: Live) -> None:
    assert live.submitted(f"{MANY} --numWorker 6 --workerMemory 1024t")


def test_the_size_of_the_driver_must_be_a_size(live: Live) -> None:
    assert live.submit(f"{SINGLE} --driverMemory lots", {"main.py": b"1"}).error == (400, "submission.command")


@pytest.mark.parametrize(
    ("line", "files", "limit"),
    [
        ("0::/", {"memory.max": "1000\n"}, 1000),
        ("0::/a/b", {"a/b/memory.max": "max", "a/memory.max": "3000", "memory.max": "4000"}, 3000),
        ("0::/of/the/host", {"memory.max": "2000"}, 2000),
        ("5:cpu,memory:/a", {"memory/a/memory.limit_in_bytes": "700", "memory.max": "5"}, 700),
        ("5:cpu:/", {"memory.max": "5", "memory/memory.limit_in_bytes": "5"}, None),
        ("0::/", {"memory.max": "max"}, None),
        ("", {"memory.max": "5"}, None),
    ],
)
def test_a_control_group_limits_the_memory(tmp_path: Path, line: str, files: dict[str, str], limit: int | None) -> None:
    for name, text in files.items():
        file = tmp_path / "tree" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "groups").write_text(f"{line}\n" if line else "")
    whole = psutil.virtual_memory().total
    assert of_machine(tmp_path / "groups", tmp_path / "tree") == (limit or whole)
    assert of_machine(tmp_path / "missing", tmp_path / "tree") == whole
