"""How the server's Python works: when it looks for garbage, and how soon a thread that computes lets others go on."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator

#: New objects after which Python looks for garbage among them. A decision about a thousand jobs makes some ten
#: thousand: with Python's 700 it would be interrupted a dozen times, now and then for as long as it takes itself.
_NEW = 20_000
#: Seconds after which others go on. With Python's 0.005 a call that comes while the scheduler decides about thousands
#: of jobs waits as long each time it comes back from the database or a file, a dozen times.
_TURN = 0.001


def calm() -> None:
    """Look for garbage less often, and never again among what is there now: modules never become garbage."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW, 10, 10)


@contextlib.contextmanager
def computing() -> Iterator[None]:
    """This thread computes, and others are to go on meanwhile. For one thread at a time: what it changes holds for
    all.

    Nobody looks for garbage meanwhile: what is made of thousands of jobs has no cycles, and would be looked through
    more than once.
    """
    before, collects = sys.getswitchinterval(), gc.isenabled()
    sys.setswitchinterval(_TURN)
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
        sys.setswitchinterval(before)
