"""Threads of OpenMP in a kernel: a thread without work sleeps, so that its core is free for others.

A thread of libgomp that waits spins for milliseconds before it sleeps. A kernel shares its cores with other kernels,
with the gateway and with trainings. Each part of a batch then waits until the system has stopped a spinning thread.
"""

from __future__ import annotations

import ctypes
import os
import threading

#: Variable that sets how threads wait (OpenMP 5.0, section 6.7). libgomp reads it when it is loaded.
WAIT_POLICY, PASSIVE = "OMP_WAIT_POLICY", "passive"


def idle_threads_sleep() -> None:
    """Make idle threads sleep soon, if the environment asks for it and libgomp is already loaded. In a forked process,
    libgomp has already read the environment of the parent.

    libgomp hardly spins while it has more threads than cores (GCC manual, GOMP_SPINCOUNT). So this function
    starts as many threads as the machine has cores, and they sleep until the process ends.
    """
    threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    library = _loaded() if os.environ.get(WAIT_POLICY, "").lower() == PASSIVE and threads != "1" else None
    if library is not None:
        there = threading.Event()
        threading.Thread(target=_crowd, args=(library, there), name="kernel-openmp", daemon=True).start()
        there.wait()


def _loaded() -> ctypes.CDLL | None:
    """Return the libgomp of this process; None if it has none."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            paths = {line.rstrip("\n").partition("/")[2] for line in file if "libgomp" in line}
    except OSError:
        return None
    found = sorted(path for path in paths if os.path.basename(path).startswith("libgomp"))
    try:
        return ctypes.CDLL(f"/{found[0]}") if found else None
    except OSError:  # the file was replaced meanwhile
        return None


def _crowd(library: ctypes.CDLL, there: threading.Event) -> None:
    """Run an empty function in one more thread than cores. These threads end with the calling thread, so it stays."""
    nothing = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)  # free(NULL) does nothing
    library.GOMP_parallel(nothing, None, ctypes.c_uint(library.omp_get_num_procs() + 1), ctypes.c_uint(0))
    there.set()
    threading.Event().wait()
