"""Parts of pages that many open pages show: each is rendered once for all of them.

A part is rendered again when the state of the server has changed, or when it is a second old. While many changes follow
each other, it is rendered a few times per second, and each page gets a part that is newer than its call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request

from local_backend.api.bulk import resting
from local_backend.services.access import Caller
from local_backend.services.load import READING
from local_backend.services.services import Services

#: Seconds after which a part is rendered again, least seconds between two renderings after changes, and seconds after
#: which a part that no page has asked for is forgotten.
_NEW, _PAUSE, _FORGOTTEN = 1.0, 0.25, 60.0

#: Renders a part. May keep values for its next rendering in the given dictionary.
Rendering = Callable[[dict[str, Any]], str]


@dataclass
class _Part:
    """A rendered part: its text, when it was made (monotonic), and the count of events then."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    text: str = ""
    made: float = float("-inf")
    events: int = -1
    asked: float = 0.0
    memory: dict[str, Any] = field(default_factory=dict)


class SharedParts:
    """The rendered parts of one server. Used in its event loop only."""

    def __init__(self) -> None:
        self._parts: dict[Hashable, _Part] = {}

    async def text(self, services: Services, caller: Caller, name: str, rendering: Rendering) -> str:
        """Return a part as users with the sight of this caller see it. Raises Busy, and errors of the rendering."""
        key = name, caller.sees_of
        now = time.monotonic()
        self._parts = {one: part for one, part in self._parts.items() if now - part.asked < _FORGOTTEN or one == key}
        part = self._parts.setdefault(key, _Part())
        part.asked = now
        async with resting(), part.lock:
            if part.events == services.execs.event_count and time.monotonic() - part.made < _NEW:
                return part.text
            await asyncio.sleep(max(0.0, part.made + _PAUSE - time.monotonic()))
            events, made = services.execs.event_count, time.monotonic()
            part.text = await services.load.run(READING, caller.name, lambda: rendering(part.memory))
            part.events, part.made = events, made
            return part.text


def shared_parts(request: Request) -> SharedParts:
    """Return the parts of the server of a call."""
    state = request.app.state
    if not hasattr(state, "shared_parts"):
        state.shared_parts = SharedParts()
    found: SharedParts = state.shared_parts
    return found
