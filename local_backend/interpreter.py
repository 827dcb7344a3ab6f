"""The server's Python: how its processes start, when it collects garbage, and how soon a computing thread yields."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator

#: New objects after which Python collects garbage among them. A decision about 1,000 jobs makes some 10,000 objects.
#: With Python's default of 700, collections interrupt it a dozen times, sometimes for as long as the decision takes.
_NEW = 20_000
#: Seconds after which another thread may run. A call that arrives while another thread computes waits this long after
#: each return from the database or a file, a dozen times. Python's default is 0.005.
_TURN = 0.001


def command(module: str, *words: str) -> list[str]:
    """Return a command line that imports a module of this package, and calls its `main` with `words` as arguments.

    Neither the working directory nor the folder of a script is on the import path: no file in them can take the place
    of a module. Python 3.10 has no option for this. The flags of the interpreter stay those of a plain `python`,
    because programs are forked from such processes.
    """
    program = f"import sys; del sys.path[0]; import {module} as module; sys.exit(module.main())"
    return [sys.executable, "-c", program, *words]


def calm() -> None:
    """Collect garbage less often, and never among the present objects: modules never become garbage. Let other threads
    run soon while one computes."""
    sys.setswitchinterval(_TURN)
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW, 10, 10)


@contextlib.contextmanager
def computing() -> Iterator[None]:
    """Collect no garbage in the block: objects made from thousands of jobs have no cycles, and collections would visit
    them more than once. Only one thread at a time may use this: the setting applies to all threads."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
