"""Idle threads of OpenMP in kernels that are forked from a process with torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: Prints the threads of the process before and after, and whether torch then still computes with 2 threads.
PROGRAM = """
import os
import torch
from local_backend.inference.kernel.openmp import idle_threads_sleep
torch.set_num_threads(2)
count = lambda: len(os.listdir("/proc/self/task"))
before = count()
idle_threads_sleep()
added = count() - before
sum_of_rows = torch.ones(1000, 1000).sum(1)
print(added > len(os.sched_getaffinity(0)), added == 0, bool((sum_of_rows == 1000).all()), torch.get_num_threads())
"""


def run(**environment: str) -> list[str]:
    found = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True,
                           timeout=300)
    return found.stdout.split()


@pytest.mark.skipif(sys.platform != "linux", reason="looks at the threads of the process")
def test_a_kernel_with_several_threads_gets_sleeping_threads() -> None:
    assert run(OMP_WAIT_POLICY="passive", OMP_NUM_THREADS="2") == ["True", "False", "True", "2"]


@pytest.mark.parametrize("environment", [
    {"OMP_NUM_THREADS": "2"},
    *(pytest.param(one, marks=pytest.mark.integration) for one in (
        {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1"}, {"OMP_WAIT_POLICY": "active"}))])
def test_other_kernels_get_no_threads(environment: dict[str, str]) -> None:
    assert run(**environment) == ["False", "True", "True", "2"]
