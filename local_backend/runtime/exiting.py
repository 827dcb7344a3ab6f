"""Ends a process that was forked from the nursery, when its program is over.

The shutdown of an interpreter clears all modules. With torch, this takes 0.5 s of CPU time, because the system copies
the memory that the process shares with the nursery. So `finish` does only the parts of the shutdown that a program can
observe. The modules of the nursery stay unchanged.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import sys
import threading
import types
import weakref
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from local_backend.elastic.script.open_files import flush_all
from local_backend.elastic.threads import EngineThread

#: Largest exit status that `os._exit` passes on as it is.
_LARGEST = 255


def status_of(code: Any) -> int | None:
    """Return the exit status of `sys.exit(code)`; None if the interpreter must do more than exit, such as print
    `code`."""
    if code is None:
        return 0
    return int(code) if isinstance(code, int) and 0 <= code <= _LARGEST else None


def libraries() -> frozenset[str]:
    """Return the paths of the shared libraries of this process, without those of the standard library."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            paths = {line.rstrip("\n")[line.index("/"):] for line in file if ".so" in line and "/" in line}
    except OSError:
        return frozenset()
    return frozenset(path for path in paths if "/lib-dynload/" not in path)


def finish(status: int, folder: str, given: Collection[str], loaded: frozenset[str]) -> None:
    """End this process with an exit status. Return if only the interpreter can end it: other threads run, the program
    has loaded libraries whose own exit functions must run, or its standard output cannot be written.

    Waits for threads, calls the registered functions, removes the objects of `__main__` and of the modules in `folder`,
    and flushes files, in the order of the interpreter. `given` are the names of the modules that the process had before
    its program started, and `loaded` its shared libraries.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if _others() or libraries() - loaded:
        return  # the interpreter stops threads before it removes what they use
    try:
        sys.stdout.flush()
    except Exception:
        return  # the interpreter reports it, and exits with 120
    flush_all()  # first: the garbage collector may close the inner file of a text file before the outer one
    _remove_modules(folder, given)
    flush_all()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).fflush(None)  # the streams of libraries that are not written in Python
    os._exit(status)


def _others() -> set[int]:
    """Return the identifiers of the threads that may use objects of the program."""
    harmless = {one.ident for one in threading.enumerate() if isinstance(one, EngineThread)}
    return sys._current_frames().keys() - harmless - {threading.get_ident()}


def _remove_modules(folder: str, given: Collection[str]) -> None:
    """Remove the modules of the program, and with them all objects that only they use. A module that is still used
    loses its names."""
    left: list[weakref.ref[types.ModuleType]] = []
    for name in [one for one in sys.modules if one == "__main__" or one not in given]:
        module = sys.modules[name]
        place = getattr(module, "__file__", None)
        if name == "__main__" or (isinstance(place, str) and place.startswith(f"{folder}/")):
            with suppress(TypeError):
                left.append(weakref.ref(module))
            del sys.modules[name]
        del module
    gc.collect()
    for one in reversed(left):
        if (used := one()) is not None:
            _clear(vars(used))


def _clear(names: dict[str, Any]) -> None:
    """Forget the values of names as the interpreter does at its end: private names first."""
    for private in (True, False):
        for name in [one for one in names if one != "__builtins__"]:
            if not private or (name.startswith("_") and not name.startswith("__")):
                names[name] = None
