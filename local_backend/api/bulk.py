"""The turns of calls (services/load.py). A call holds a turn of its user until its answer begins, except while it
rests. Routes that do bulk work do it in another turn of the user, and count as an open stream to the last byte."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, TypeVar

from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from local_backend.api.depends import CALLER
from local_backend.services.access import Caller
from local_backend.services.load import CallTurn, Load, refusal_of
from local_backend.services.services import Services

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

#: Bytes of a body that is sent in pieces, and bytes of a piece.
_LARGE, _PIECE = 1 << 20, 128 << 10
#: Endpoint → codes of the errors with status 429.
REFUSALS: dict[Callable[..., Any], str] = {}

#: What the present call holds until its answer has ended.
_held: ContextVar[contextlib.ExitStack] = ContextVar("held")


#: The turn of the present call.
_turn: ContextVar[CallTurn] = ContextVar("turn")


@contextlib.contextmanager
def answering(turn: CallTurn) -> Iterator[None]:
    """Keep what a call holds until the end of the block, which sends the whole answer."""
    with contextlib.ExitStack() as held:
        _held.set(held)
        _turn.set(turn)
        held.callback(turn.end)
        yield


@contextlib.asynccontextmanager
async def resting() -> AsyncIterator[None]:
    """Let other calls of the user be computed in the block, in which the present call waits."""
    async with _turn.get().resting():
        yield


async def in_turn(load: Load, kind: str, user: str, work: Callable[[], T]) -> T:
    """Run `work` in the user's turn of this kind of bulk work, and return its result. Raises Busy."""
    async with resting():
        return await load.run(kind, user, work)


def sending(turn: CallTurn, send: Send, load: Load, user: Callable[[], str]) -> Send:
    """Return a `send` that ends the turn when the answer begins. It sends a large body in pieces, each in a turn of the
    user: a connection copies all unread bytes after each part that its client reads, and so delays other calls."""

    async def sent(message: Message) -> None:
        turn.end()
        body = message.get("body", b"")
        if len(body) <= _LARGE:
            await send(message)
            return
        cut = (body[at:at + _PIECE] for at in range(0, len(body), _PIECE))
        async for piece in load.pieces(user(), cut):
            await send({**message, "body": piece, "more_body": True})
        await send({**message, "body": b""})

    return sent


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
            return await in_turn(services.load, kind, caller.name, functools.partial(endpoint, **given))

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
