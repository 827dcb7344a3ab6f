"""The CPU time of the processes of a job."""

from __future__ import annotations

import os
import subprocess
import sys

from support import eventually

from local_backend.runtime.tree import cpu_seconds

#: Computes for 0.2 s of CPU time in a child that ends, then waits.
PROGRAM = """
import subprocess, sys, time
burn = "import time\\nwhile time.process_time() < 0.2: pass"
subprocess.run([sys.executable, "-c", burn])
sys.stdin.read()
"""


def test_the_time_of_a_process_and_its_children_counts() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE) as process:
        eventually(lambda: cpu_seconds(process.pid) >= 0.2, "the child has computed")
        assert cpu_seconds(os.getpid()) > cpu_seconds(process.pid)
        process.communicate()
    assert cpu_seconds(process.pid) == 0.0
