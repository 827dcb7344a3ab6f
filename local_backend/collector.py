"""How often the server looks for garbage."""

from __future__ import annotations

import gc

#: New objects after which Python looks for garbage among them. A decision about a thousand jobs makes some ten
#: thousand: with Python's 700 it would be interrupted a dozen times, now and then for as long as it takes itself.
_NEW = 20_000


def calm() -> None:
    """Look less often, and never again at what is there now: modules never become garbage."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW, 10, 10)
