"""GET /execs/{id}/follow: the exec, its new events and its new output in one answer, as soon as there is news."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from dlicmd.contract import states, wire
from local_backend.api.as_json import JsonAnswer
from local_backend.api.bulk import hold, resting
from local_backend.api.depends import TOKEN, TheCaller, TheServices
from local_backend.api.description import OWN_EXECS, about
from local_backend.api.models.execs import Line, News
from local_backend.api.queries import whole
from local_backend.api.route import Route
from local_backend.api.showing import show
from local_backend.api.textlog import size
from local_backend.errors import Invalid, Unauthorized
from local_backend.runtime.paths import DRIVER, ExecPaths, worker_task
from local_backend.services.access import Caller
from local_backend.services.executors import processes
from local_backend.services.services import Services
from local_backend.services.views import is_parked
from local_backend.store.events import Event
from local_backend.store.execs import ExecRow
from local_backend.store.labels import Labels
from local_backend.store.states import shown_as

router = APIRouter(tags=["execs"], route_class=Route)

MOST_WAIT = 30
#: Maximum bytes of output per answer. A longer line is cut there.
MOST_BYTES = 256 << 10
#: Seconds between two looks at the files of the exec.
_POLL = 0.1
#: Offsets and ids are below this number, also in the database.
_LARGEST = 1 << 63


@dataclass
class Cursor:
    """The news that the client has: bytes of each stream, a checksum of the exec object, and the last event."""

    offsets: dict[str, int] = field(default_factory=dict)
    mark: int = -1
    event: int = 0

    def encode(self) -> str:
        """Return the cursor as text that is safe in a URL."""
        text = json.dumps([self.mark, self.offsets, self.event], separators=(",", ":"))
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> Cursor:
        """Return the cursor of a text from `encode`. Empty text means the beginning. Raises Invalid
        (`query.cursor`)."""
        if not text:
            return cls()
        try:
            mark, offsets, event = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
            sizes = [*offsets.values(), event]
            if not all(type(value) is int and 0 <= value < _LARGEST for value in sizes) or type(mark) is not int:
                raise ValueError
        except (binascii.Error, ValueError, TypeError, AttributeError, RecursionError):
            raise Invalid("query.cursor", "cursor: unknown cursor; start again without a cursor") from None
        return cls(offsets, mark, event)


@router.get(wire.EXECS + "/{exec_id}/follow")
@about(OWN_EXECS, extension=wire.EXT_FOLLOW, errors={
    400: "exec.not_found query.cursor query.number", 429: "quota.streams",
})
async def follow(
    *, request: Request, services: TheServices, caller: TheCaller, exec_id: str, cursor: str = "", wait: str = "0"
) -> JsonAnswer[News]:
    """Return the exec, its events and its output after `cursor`, and the next cursor. Waits up to `wait` seconds (at
    most 30) for news. The client has all output when the exec is terminal and `lines` is empty."""
    hold(services.load.users.stream(caller.name))
    seen = Cursor.decode(cursor)
    deadline = time.monotonic() + min(whole(wait, "wait", 0), MOST_WAIT)
    base_url = str(request.base_url)
    began = time.monotonic()

    async def read() -> tuple[ExecRow, list[Event]]:
        return await run_in_threadpool(services.execs.news, caller, exec_id, seen.event)

    with services.execs.listening(exec_id) as news:
        row, found = await read()
        paths = services.execs.paths(row)
        if cursor and not found and not row.terminal and time.monotonic() < deadline:
            is_busy = await run_in_threadpool(_behind, row, paths, seen) < MOST_BYTES
            if is_busy and await _within(news, _POLL):
                # If a program writes without pause, answer a few times per second, not as often as the client can ask.
                news.clear()
                row, found = await read()
        while True:
            before = await run_in_threadpool(_hints, services, row, paths)
            answer, is_new = await run_in_threadpool(_news, services, row, found, base_url, seen)
            late = time.monotonic() >= deadline or services.machine.closing or await request.is_disconnected()
            if is_new or row.terminal or late:
                if time.monotonic() - began > _POLL:
                    await _check_again(request, services, caller)
                return JsonAnswer(answer)
            while time.monotonic() < deadline and not services.machine.closing:
                # Files have no events: output, progress.
                if await _within(news, _POLL) or await run_in_threadpool(_hints, services, row, paths) != before:
                    break
            if news.is_set():
                news.clear()
                row, found = await read()


async def _check_again(request: Request, services: Services, caller: Caller) -> None:
    """Raise Unauthorized (`auth.required`) if the token of the call, which may have waited for long, has ended or lost
    the rights of an administrator."""
    token = request.scope[TOKEN]
    if token is None or services.logons.is_own(token):
        return
    found = await run_in_threadpool(services.logons.of_token, token)
    if found is None or (caller.admin and not found.admin):
        raise Unauthorized("auth.required", "The token of this call has ended meanwhile; log on again")


async def _within(news: asyncio.Event, seconds: float) -> bool:
    """Return whether there are new events within this time."""
    try:
        async with resting():
            await asyncio.wait_for(news.wait(), seconds)
    except asyncio.TimeoutError:  # same class as the built-in TimeoutError only since Python 3.11
        return False
    return True


def _news(services: Services, row: ExecRow, found: list[Event], base_url: str, seen: Cursor) -> tuple[News, bool]:
    """Return the answer, and whether it has news since `seen`. The row was read before the files: if the row is
    terminal, the files contain all output."""
    shown = show(services.execs.view(row), base_url, Labels())
    mark = zlib.crc32(json.dumps(shown, sort_keys=True).encode())
    paths = services.execs.paths(row)
    lines, offsets = new_lines(paths, streams(row, paths), seen.offsets, row.terminal)
    cursor = Cursor(offsets, mark, found[-1].id if found else seen.event)
    told = [{wire.ID: one.id, wire.TIME: one.time, wire.KIND: one.kind, **_told(one)} for one in found]
    answer: News = {"exec": shown, "events": told, "lines": lines, "cursor": cursor.encode()}
    return answer, bool(lines or found) or mark != seen.mark


def _told(event: Event) -> dict[str, Any]:
    """Return the values of an event, with the state as clients see it."""
    state = event.data.get(wire.STATE)
    if state is None:
        return dict(event.data)
    more = {wire.RECOVERING: True} if state == states.RECOVERING else {}
    return {**event.data, wire.STATE: shown_as(state), **more}


def streams(row: ExecRow, paths: ExecPaths) -> list[tuple[str, str, Path]]:
    """Return (task, stream, file) of the followed output: of the driver of an elastic exec, else of every process."""
    tasks = [DRIVER] if row.elastic else [worker_task(number) for number in processes(row)]
    return [(task, stream, paths.capture(task, stream, row.elastic)) for task in tasks for stream in _STREAMS]


_STREAMS = ("stdout", "stderr")


def _hints(services: Services, row: ExecRow, paths: ExecPaths) -> list[object]:
    """Return values that change when there may be news in progress and files, or another reason why the exec waits."""
    said = [services.execs.view(row).progress, _changed(paths.fetch_progress)]
    waits = row.state in (states.SUBMITTED, states.PENDING) or is_parked(row)
    others = [services.execs.event_count] if waits else []
    return [*said, *others, *(size(path) for _, _, path in streams(row, paths))]


def _behind(row: ExecRow, paths: ExecPaths, seen: Cursor) -> int:
    """Return the number of bytes of output after the cursor."""
    return sum(size(path) for _, _, path in streams(row, paths)) - sum(seen.offsets.values())


def _changed(path: Path) -> int:
    try:
        return path.lstat().st_mtime_ns
    except OSError:
        return 0


def new_lines(
    paths: ExecPaths, sources: list[tuple[str, str, Path]], offsets: dict[str, int], over: bool
) -> tuple[list[Line], dict[str, int]]:
    """Return whole lines after the offsets, at most MOST_BYTES, and the new offsets. A last line without a newline is
    included only when the exec is `over`."""
    lines: list[Line] = []
    following = dict(offsets)
    left = MOST_BYTES
    for task, stream, path in sources:
        key = f"{task}.{stream}"
        start = offsets.get(key, 0)
        chunk = _read(paths, path, start, left)
        if not over or len(chunk) == left:
            cut = chunk.rfind(b"\n") + 1
            chunk = chunk[: cut or (MOST_BYTES if len(chunk) >= MOST_BYTES else 0)]
        if chunk:
            following[key] = start + len(chunk)
            left -= len(chunk)
            texts = chunk.removesuffix(b"\n").split(b"\n")
            lines += [{"task": task, "stream": stream, "text": _text(text)} for text in texts]
    return lines, following


def _text(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", "replace")


def _read(paths: ExecPaths, path: Path, start: int, most: int) -> bytes:
    if most <= 0 or size(path) <= start:
        return b""
    file = paths.opened(path)
    if file is None:
        return b""
    with file:
        file.seek(start)
        return file.read(most)
