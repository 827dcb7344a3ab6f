"""GET /console/live: tells a page which of its parts to load again (server-sent events).

The events carry no content. `changed`: an exec of any user has changed its state, its slots or its message. `tick`:
something that has no event may have changed, such as the progress of a running exec. With `run`, both are about one
exec. A page loads only the parts that are on it, and a hidden page holds no stream (htmx-sse.js).

With `part`, the stream sends a part itself, whenever it has changed, and no events: many pages are open at the
overview, and to send a part that was made once costs far less than a call of each page."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from local_backend.api.bulk import hold
from local_backend.api.depends import TOKEN, TheCaller, TheServices
from local_backend.console import overview, places
from local_backend.console.rendering import HEADERS
from local_backend.console.route import router as pages
from local_backend.errors import NotFound
from local_backend.services.services import Services

router = pages()
#: Least seconds between two events, seconds after which a page looks again although it heard of no change, and seconds
#: between two checks of the session.
_PAUSE, _TICK, _CHECK = 0.5, 2.0, 30.0
#: Begins each stream: a browser that has lost it waits for so many milliseconds.
_RETRY = "retry: 1000\n\n"
#: The part that a stream can send.
OVERVIEW = "overview"


@router.get(places.LIVE)
async def live(
    request: Request, services: TheServices, caller: TheCaller, run: str = "", part: str = ""
) -> Response:
    """Stream the events of a page, or a part."""
    if run:
        await run_in_threadpool(services.execs.find, caller, run)
    if part not in ("", OVERVIEW):
        raise NotFound("http.no_such_path", "No page has this live part; load the page again")
    hold(services.load.users.stream(caller.name))
    changes = _changes(services, request.scope[TOKEN], run or None)
    events = _pushed(changes, lambda: overview.part(request, services, caller)) if part else _named(changes)
    return StreamingResponse(events, headers=HEADERS, media_type="text/event-stream")


async def _named(changes: AsyncIterator[str]) -> AsyncIterator[str]:
    """Yield the events of these names."""
    yield _RETRY
    async for name in changes:
        yield f"event: {name}\ndata: 1\n\n"


async def _pushed(changes: AsyncIterator[str], rendered: Callable[[], Awaitable[str]]) -> AsyncIterator[str]:
    """Yield a part after each change that it shows."""
    yield _RETRY
    sent = ""
    async for _ in changes:
        text = await rendered()
        if text != sent:
            sent = text
            yield "".join(f"data: {line}\n" for line in text.splitlines()) + "\n"


async def _changes(services: Services, token: str | None, run: str | None) -> AsyncIterator[str]:
    """Yield `changed` and `tick` until the server or the session ends."""
    checked = time.monotonic()
    with services.execs.listening(run) as news:
        news.set()  # something may have changed since the page was made, or while the page was hidden
        while not services.machine.closing:
            try:
                await asyncio.wait_for(news.wait(), _TICK)
                name = "changed"
            except asyncio.TimeoutError:  # same class as the built-in TimeoutError only since Python 3.11
                name = "tick"
            news.clear()
            if time.monotonic() - checked > _CHECK:
                checked = time.monotonic()
                if token is not None and await run_in_threadpool(services.logons.of_token, token) is None:
                    return
            yield name
            await asyncio.sleep(_PAUSE)
