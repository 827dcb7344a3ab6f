"""A tiny program in place of a kernel, for tests of services: it needs no gateway."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from runtime_support import Bench
from support import eventually

from local_backend.store import execs
from local_backend.workload import Service

#: Notes its environment, and is ready unless a file says otherwise. On SIGTERM it notes that it left.
PROGRAM = """
import json, os, signal, sys, time
number = os.environ["DLI_KERNEL_NUMBER"]
def left(*_):
    open(f"left-{number}", "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN if os.path.exists("stay") else left)
with open(f"part-{number}", "w") as file:
    json.dump(dict(os.environ) | {"pid": os.getpid()}, file)
os.rename(f"part-{number}", f"kernel-{number}")
if os.path.exists("broken"):
    sys.exit("no weights")
if not os.path.exists("silent"):
    os.write(int(os.environ["DLI_READY_FD"]), b"x")
while True:
    time.sleep(600)
"""


def service(**values: Any) -> Service:
    """A service whose kernels run PROGRAM, the submitted main.py."""
    return Service(**{
        "model": "digits", "revision": 3, "key": "secret-of-3", "socket": "/tmp/no-gateway.sock",
        "description": {"name": "digits", "weight_path": "weights.pt"}, "command": ("main.py",),
        "leave_timeout": 30.0,
    } | values)


def serve(
    one: Bench, *, least: int = 1, most: int = 2, wanted: int | None = None, files: dict[str, str] | None = None,
    values: dict[str, Any] | None = None, **spec: Any,
) -> str:
    """Submit a service; `values` are those of its `Service`."""
    exec_id = one.submit(
        {"main.py": PROGRAM} | (files or {}), kind="service", elastic=True, min_workers=least, num_worker=most,
        service=service(**values or {}), wanted=wanted, **spec)
    return exec_id


def want(one: Bench, exec_id: str, kernels: int | None) -> None:
    """Say how many kernels a service wants now."""
    one.database.write(lambda c: execs.want(c, exec_id, kernels))
    one.wake()


def folder(one: Bench, exec_id: str) -> Path:
    """The working directory of the kernels."""
    return one.paths(exec_id).code(one.row(exec_id).workload)


def kernel(one: Bench, exec_id: str, number: int) -> dict[str, Any]:
    """Wait for a kernel, and return its environment, with its pid as the server sees it."""
    path = folder(one, exec_id) / f"kernel-{number}"
    found: dict[str, Any] = json.loads(eventually(lambda: path.exists() and path.read_text(), f"kernel {number}"))
    return found


def numbers(one: Bench, exec_id: str) -> list[int]:
    """The numbers of all kernels that ever ran."""
    return sorted(int(path.name.partition("-")[2]) for path in folder(one, exec_id).glob("kernel-*"))


def left(one: Bench, exec_id: str, number: int) -> bool:
    """Whether a kernel left when it was asked to."""
    return (folder(one, exec_id) / f"left-{number}").exists()


def end(one: Bench, exec_id: str, number: int) -> None:
    """Kill a kernel."""
    os.kill(int(kernel(one, exec_id, number)["pid"]), signal.SIGKILL)
