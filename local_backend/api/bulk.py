"""Routes that do bulk work (services/load.py): in the user's turn, and counted as an open stream to the last byte."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, TypeVar

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from local_backend.api.depends import CALLER
from local_backend.services.access import Caller
from local_backend.services.load import Load, refusal_of
from local_backend.services.services import Services

F = TypeVar("F", bound=Callable[..., Any])

#: Endpoint → codes of the errors with status 429.
REFUSALS: dict[Callable[..., Any], str] = {}

#: What the present call holds until its answer has ended.
_held: ContextVar[contextlib.ExitStack] = ContextVar("held")


@contextlib.contextmanager
def answering() -> Iterator[None]:
    """Keep what a call holds until the end of the block, which sends the whole answer."""
    with contextlib.ExitStack() as held:
        _held.set(held)
        yield


def hold(context: contextlib.AbstractContextManager[None]) -> None:
    """Enter a context that the present call leaves after the last byte of its answer."""
    _held.get().enter_context(context)


def bulk(kind: str, stream: bool = True) -> Callable[[F], F]:
    """Let the endpoint, a plain function with `services` and `caller`, run in the user's turn of this kind of bulk
    work. With `stream`, the call counts as an open stream of the user."""

    def made(endpoint: F) -> F:
        @functools.wraps(endpoint)
        async def run(**given: Any) -> Any:
            services: Services = given["services"]
            caller: Caller = given["caller"]
            if stream:
                hold(services.load.users.stream(caller.name))
            return await services.load.run(kind, caller.name, functools.partial(endpoint, **given))

        REFUSALS[run] = f"{refusal_of(kind)} quota.streams" if stream else refusal_of(kind)
        return run  # type: ignore[return-value]

    return made


class Streamed(StreamingResponse):
    """An answer in pieces that take time to compute or read."""

    def __init__(
        self, load: Load, chunks: Iterator[bytes], status: int = 200, headers: Mapping[str, str] | None = None,
        media_type: str | None = None,
    ) -> None:
        super().__init__((), status, headers, media_type)
        self._load, self._chunks = load, chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer (ASGI)."""
        self.body_iterator = self._load.pieces(scope[CALLER].name, self._chunks)
        await super().__call__(scope, receive, send)
