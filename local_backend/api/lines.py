"""GET /execs/{id}/lines: lines of the output of a program, selected on the server."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import WithJsonSchema
from starlette.responses import Response

from dlicmd.contract import wire
from local_backend.api.bulk import Streamed, bulk
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.description import OWN_EXECS, about
from local_backend.api.follow import Cursor, streams
from local_backend.api.models.common import one_of
from local_backend.api.objects import utc
from local_backend.api.queries import moment, whole
from local_backend.api.route import Route
from local_backend.errors import Invalid, NotFound
from local_backend.runtime.output import (
    OutputExtent,
    OutputSpan,
    OutputStream,
    Segment,
    key,
    lines_of,
    segments,
    spans,
    without_first,
)
from local_backend.runtime.paths import DRIVER, ExecPaths, worker_task
from local_backend.services.executors import exists
from local_backend.services.load import READING
from local_backend.store.execs import ExecRow

router = APIRouter(tags=["logs"], route_class=Route)

#: Minimum bytes of a piece of the answer, except the last one: small pieces cost more than their content.
_PIECE = 64 << 10
#: Seconds after which a search without enough lines for a piece lets other users take their turn.
_TURN = 0.2
#: Maximum number and bytes of the texts to search for.
_MOST_TEXTS, _LONGEST = 100, 10_000
#: A whole number. The server refuses other texts after it has found the exec.
_Number = Annotated[str | None, WithJsonSchema({"type": "string", "pattern": "^[0-9]{0,10}$"})]


@router.get(wire.EXECS + "/{exec_id}/lines")
@about(OWN_EXECS, extension=wire.EXT_LINES, media="text/plain", errors={
    400: "exec.not_found exec.no_driver exec.no_executor query.cursor query.number query.time query.value",
})
@bulk(READING)
def lines(
    *,
    services: TheServices,
    caller: TheCaller,
    exec_id: str,
    tail: Annotated[_Number, Query(description="number of last lines; all by default")] = None,
    since: Annotated[str | None, Query(description="only lines written since: ISO 8601 or epoch seconds")] = None,
    worker: Annotated[_Number, Query(description="only the output of this worker, from 1; 0: the driver")] = None,
    grep: Annotated[
        list[str], Query(description="only lines that contain this text, or one of several texts")] = [],  # noqa: B006
    timestamps: Annotated[
        str, one_of("", "true", "false"), Query(description="whether each line begins with its time, task and stream")
    ] = "",
    cursor: Annotated[str | None, Query(description="only lines after this cursor; empty: from the beginning")] = None,
) -> Response:
    """Return lines that the program has written, on both streams of all its processes as /follow shows them, ordered by
    time. With `timestamps=true`, each line begins with its time, task and stream.

    The header X-DLI-Cursor has the cursor for the lines that follow. With `cursor`, a last line that is not complete
    is left out while the exec runs."""
    row = services.execs.find(caller, exec_id)
    paths = services.execs.paths(row)
    wanted = OutputExtent(
        since=None if since is None else moment(since, wire.SINCE),
        tail=None if not tail else whole(tail, wire.TAIL, 0),
        offsets=None if cursor is None else Cursor.decode(cursor).offsets,
        whole=cursor is not None and not row.terminal,
    )
    texts = [text.encode() for text in grep if text]
    if len(texts) > _MOST_TEXTS or sum(map(len, texts)) > _LONGEST:
        raise Invalid("query.value", f"{wire.GREP}: more than {_MOST_TEXTS} texts or {_LONGEST} bytes")
    if timestamps not in ("", "true", "false"):
        raise Invalid("query.value", f"{wire.TIMESTAMPS}: {timestamps[:40]!r} is neither true nor false")
    # The tail is taken from the matching lines.
    found = spans(paths, _streams(row, paths, worker), replace(wanted, tail=None) if texts else wanted)
    answered = _last(paths, found, wanted.tail, texts)
    pieces = _pieces(_stamped(answered) if timestamps == "true" else (segment.text for segment in answered))
    after = Cursor(dict(wanted.offsets or {}) | {key(span.stream): span.end for span in found})
    return Streamed(
        services.load, pieces, media_type="text/plain; charset=utf-8", headers={wire.CURSOR_HEADER: after.encode()})


def _streams(row: ExecRow, paths: ExecPaths, worker: str | None) -> list[OutputStream]:
    """Return the streams of one worker; of all followed processes without a worker. Raises NotFound
    (`exec.no_driver`, `exec.no_executor`), Invalid (`query.number`)."""
    if not worker:
        return [OutputStream(*one) for one in streams(row, paths)]
    number = whole(worker, wire.WORKER, 0)
    if number == 0 and not row.elastic:
        raise NotFound("exec.no_driver", f"Exec {row.id} has no driver: {row.framework} runs workers only")
    if number > 0 and not exists(row, paths, number):
        raise NotFound("exec.no_executor", f"Exec {row.id} has no worker {number}")
    task = worker_task(number) if number else DRIVER
    return [OutputStream(task, stream, paths.capture(task, stream, row.elastic)) for stream in ("stdout", "stderr")]


def _last(paths: ExecPaths, found: list[OutputSpan], tail: int | None, texts: list[bytes]) -> Iterator[Segment]:
    """Yield the matching lines, only the last `tail` if that is given. A segment without a match is yielded empty, so
    that the reader may pause."""
    skipped = 0
    if tail is not None:
        count = 0
        for segment in _matching(segments(paths, found), texts):
            count += segment.text.count(b"\n")
            yield segment._replace(text=b"")
        skipped = max(0, count - tail)
    yield from without_first(_matching(segments(paths, found), texts), skipped)


def _matching(found: Iterable[Segment], texts: list[bytes]) -> Iterator[Segment]:
    """Yield each segment with the lines that contain one of the texts; with all lines without texts. Every line gets a
    newline."""
    for segment in found:
        whole_text = segment.text if segment.text.endswith(b"\n") else segment.text + b"\n"
        if texts:
            # Most segments match no text.
            lines = lines_of(whole_text) if any(text in whole_text for text in texts) else []
            whole_text = b"".join(line + b"\n" for line in lines if any(text in line for text in texts))
        yield segment._replace(text=whole_text)


def _stamped(found: Iterable[Segment]) -> Iterator[bytes]:
    for segment in found:
        if not segment.text:
            yield b""
            continue
        at = utc(segment.time).isoformat(timespec="milliseconds")
        prefix = f"{at}Z {segment.stream.task} {segment.stream.name} ".encode()
        yield prefix + segment.text[:-1].replace(b"\n", b"\n" + prefix) + b"\n"


def _pieces(texts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield texts as pieces. A piece may be empty: the search goes on in the next one."""
    waiting: list[bytes] = []
    size, until = 0, time.monotonic() + _TURN
    for text in texts:
        waiting.append(text)
        size += len(text)
        if size >= _PIECE or time.monotonic() >= until:
            yield b"".join(waiting)
            waiting, size, until = [], 0, time.monotonic() + _TURN
    yield b"".join(waiting)
