"""GET /execs/{id}/follow: the exec and its new output in one answer, as soon as there is news."""

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

from dlicmd.contract import wire
from local_backend.api.as_json import JsonAnswer
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.queries import whole
from local_backend.api.showing import show
from local_backend.api.textlog import size
from local_backend.errors import Invalid
from local_backend.runtime.paths import DRIVER, ExecPaths, worker_task
from local_backend.services.access import Caller
from local_backend.services.executors import processes
from local_backend.services.services import Services
from local_backend.store.execs import ExecRow

router = APIRouter(tags=["execs"])

MOST_WAIT = 30
#: Maximum bytes of output per answer. A longer line is cut there.
MOST_BYTES = 256 << 10
_POLL = 0.1


@dataclass
class Cursor:
    """What the client has seen: the bytes of each stream, and a checksum of the exec object."""

    offsets: dict[str, int] = field(default_factory=dict)
    mark: int = -1

    def encode(self) -> str:
        """Return the cursor as text that is safe in a URL."""
        text = json.dumps([self.mark, self.offsets], separators=(",", ":"))
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> Cursor:
        """Return the cursor of a text from `encode`. Empty text means the beginning. Raises Invalid
        (`query.cursor`)."""
        if not text:
            return cls()
        try:
            mark, offsets = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
            if not all(type(value) is int and value >= 0 for value in offsets.values()) or type(mark) is not int:
                raise ValueError
        except (binascii.Error, ValueError, TypeError, AttributeError, RecursionError):
            raise Invalid("query.cursor", "cursor: unknown cursor; start again without a cursor") from None
        return cls(offsets, mark)


@router.get(wire.EXECS + "/{exec_id}/follow", response_model=dict[str, Any])
async def follow(
    *, request: Request, services: TheServices, caller: TheCaller, exec_id: str, cursor: str = "", wait: str = "0"
) -> JsonAnswer:
    """Return the exec, its output after `cursor`, and the next cursor. Waits up to `wait` seconds (at most 30) for
    news. The client has all output when the exec is terminal and `lines` is empty."""
    seen = Cursor.decode(cursor)
    deadline = time.monotonic() + min(whole(wait, "wait", 0), MOST_WAIT)
    base_url = str(request.base_url)
    row, version = await run_in_threadpool(_row, services, exec_id, caller)
    paths = services.execs.paths(row)
    if cursor and not row.terminal and time.monotonic() < deadline and _behind(row, paths, seen) < MOST_BYTES:
        # If a program writes without pause, answer some times a second, not as often as the client can ask.
        await asyncio.sleep(_POLL)
        if services.base.database.changes != version:
            row, version = await run_in_threadpool(_row, services, exec_id, caller)
    while True:
        answer = await run_in_threadpool(_news, services, row, base_url, seen)
        late = time.monotonic() >= deadline or services.machine.closing or await request.is_disconnected()
        if answer is not None or row.terminal or late:
            return JsonAnswer(answer or _answer(services, row, base_url, seen))
        before = _sizes(row, paths)
        while time.monotonic() < deadline and not services.machine.closing:
            await asyncio.sleep(_POLL)
            if services.base.database.changes != version or _sizes(row, paths) != before:
                break
        if services.base.database.changes != version:
            row, version = await run_in_threadpool(_row, services, exec_id, caller)


def _row(services: Services, exec_id: str, caller: Caller) -> tuple[ExecRow, int]:
    version = services.base.database.changes
    return services.execs.find(caller, exec_id), version


def _answer(services: Services, row: ExecRow, base_url: str, cursor: Cursor) -> dict[str, Any]:
    return {wire.EXEC: show(services.execs.view(row), base_url), wire.LINES: [], wire.CURSOR: cursor.encode()}


def _news(services: Services, row: ExecRow, base_url: str, seen: Cursor) -> dict[str, Any] | None:
    """Return the answer when there is news since `seen`, else None. The row was read before the files: if the row is
    terminal, the files contain all output."""
    shown = show(services.execs.view(row), base_url)
    mark = zlib.crc32(json.dumps(shown, sort_keys=True).encode())
    paths = services.execs.paths(row)
    lines, offsets = new_lines(paths, streams(row, paths), seen.offsets, row.terminal)
    if not lines and mark == seen.mark:
        return None
    return {wire.EXEC: shown, wire.LINES: lines, wire.CURSOR: Cursor(offsets, mark).encode()}


def streams(row: ExecRow, paths: ExecPaths) -> list[tuple[str, str, Path]]:
    """Return (task, stream, file) of the followed output: of the driver of an elastic exec, else of every process."""
    tasks = [DRIVER] if row.elastic else [worker_task(number) for number in processes(row)]
    return [(task, stream, paths.capture(task, stream, row.elastic)) for task in tasks for stream in _STREAMS]


_STREAMS = ("stdout", "stderr")


def _sizes(row: ExecRow, paths: ExecPaths) -> list[int]:
    """Return values that change when there may be news in the files."""
    said = [_changed(path) for path in (paths.progress, paths.fetch_progress)]
    return said + [size(path) for _, _, path in streams(row, paths)]


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
) -> tuple[list[dict[str, str]], dict[str, int]]:
    """Return whole lines after the offsets, at most MOST_BYTES, and the new offsets. A last line without a newline is
    included only when the exec is `over`."""
    lines: list[dict[str, str]] = []
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
            lines += [{wire.TASK: task, wire.STREAM: stream, wire.TEXT: _text(text)} for text in texts]
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
