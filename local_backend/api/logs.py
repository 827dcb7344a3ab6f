"""Logs of the program (/execs/{id}/log) and of single processes (/scheduler/.../logs/...)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import WithJsonSchema
from starlette.responses import Response

from dlicmd.contract import wire
from local_backend.api.accept import JSON, prefers_json
from local_backend.api.bulk import Streamed, bulk
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.description import OWN_EXECS, about
from local_backend.api.models.common import one_of
from local_backend.api.queries import whole
from local_backend.api.route import Route
from local_backend.api.textlog import content, json_string, prefixed, size
from local_backend.errors import Invalid, NotFound
from local_backend.runtime.paths import DRIVER, ExecPaths, worker_task
from local_backend.services.executors import executors, exists
from local_backend.services.load import READING
from local_backend.services.services import Services
from local_backend.store.execs import ExecRow

router = APIRouter(tags=["logs"], route_class=Route)

_STREAMS = {"outlog": ("stdout",), "errlog": ("stderr",), "outerrlog": ("stdout", "stderr")}
_LOGS = ("stdout", "stderr", "launcherlog")
#: The name of a log.
Log = Annotated[str, one_of(*_LOGS)]
#: Media types of a log.
_MEDIA = "text/plain application/json"
#: A number of lines. The server refuses other texts after it has found the exec.
LastLines = Annotated[
    str | None, WithJsonSchema({"type": "string", "pattern": "^[0-9]{0,10}$"}),
    Query(description="the number of last lines to return; all by default"),
]


@router.get(wire.EXECS + "/{exec_id}/log")
@about(OWN_EXECS, errors={400: "exec.not_found query.log"}, media=_MEDIA)
@bulk(READING)
def train_log(
    *,
    request: Request,
    services: TheServices,
    caller: TheCaller,
    exec_id: str,
    logType: Annotated[str, one_of("", *_STREAMS)] = "outlog",
) -> Response:
    """Return the output of the program: `outlog`, `errlog`, or `outerrlog` (first `outlog`, then `errlog`). The
    answer is text, or one JSON string."""
    row = services.execs.find(caller, exec_id)
    streams = _STREAMS.get(logType or "outlog")
    if streams is None:
        raise Invalid("query.log", f"logType: unknown value {logType[:40]!r}; use {', '.join(_STREAMS)}")
    paths = services.execs.paths(row)
    files = [path for stream in streams for path in program_logs(row, paths, stream)]
    return _answer(services, request, content(paths, files))


@router.get(wire.APPLICATIONS + "/{app_id}/driver/logs/{log}")
@about(OWN_EXECS, errors={400: "exec.not_found exec.no_driver query.log query.number"}, media=_MEDIA)
@bulk(READING)
def driver_log(
    *, request: Request, services: TheServices, caller: TheCaller, app_id: str, log: Log, lastlines: LastLines = None
) -> Response:
    """Return a log of the driver: `stdout`, `stderr` or `launcherlog`. Only elastic execs have output of a driver."""
    return _answer(services, request, of_driver(services, services.execs.find(caller, app_id), log, lastlines))


@router.get(wire.APPLICATIONS + "/{app_id}/executor/{number}/logs/{log}")
@about(OWN_EXECS, errors={400: "exec.not_found exec.no_executor query.log query.number"}, media=_MEDIA)
@bulk(READING)
def executor_log(
    *,
    request: Request,
    services: TheServices,
    caller: TheCaller,
    app_id: str,
    number: str,
    log: Log,
    lastlines: LastLines = None,
) -> Response:
    """Return a log of executor `number` (from 1), even if no list shows it. Lines of programs that are not elastic
    start with the number of their task."""
    found = of_executor(services, services.execs.find(caller, app_id), number, log, lastlines)
    return _answer(services, request, found)


def of_driver(services: Services, row: ExecRow, log: str, lastlines: str | None = None) -> Iterator[bytes]:
    """Return a log of the driver. Raises NotFound (`exec.no_driver`), Invalid (`query.log`, `query.number`)."""
    if not row.elastic and log != "launcherlog":
        raise NotFound("exec.no_driver", f"Exec {row.id} has no driver: {row.framework} runs executors only")
    paths = services.execs.paths(row)
    return content(paths, [_task_file(paths, row, DRIVER, log)], _lines(lastlines))


def of_executor(
    services: Services, row: ExecRow, number: str, log: str, lastlines: str | None = None
) -> Iterator[bytes]:
    """Return a log of executor `number`. Raises NotFound (`exec.no_executor`), Invalid (`query.log`,
    `query.number`)."""
    executor, paths = whole(number, "executor", 1), services.execs.paths(row)
    if not exists(row, paths, executor):
        raise NotFound("exec.no_executor", f"Exec {row.id} has no executor {executor}")
    chunks = content(paths, [_task_file(paths, row, worker_task(executor), log)], _lines(lastlines))
    if row.elastic or log == "launcherlog":
        return chunks
    return prefixed(chunks, f"*Task <{executor}> SubProcess*: ".encode())


def as_text(services: Services, chunks: Iterator[bytes]) -> Response:
    """Return a log as text."""
    return Streamed(services.load, chunks, media_type="text/plain; charset=utf-8")


def program_logs(row: ExecRow, paths: ExecPaths, stream: str) -> list[Path]:
    """Return the files with the program's own output, ordered by rank.

    The standard output of an elastic program is LOG_DIR/stdout if the program stored that (ELog does), else the
    output of its driver. Its standard error includes that of its workers, because their tracebacks are there (only
    the newest workers, see `executors`).
    """
    workers = [worker_task(number) for number in executors(row, paths)]
    if not row.elastic:
        return [paths.capture(task, stream, False) for task in workers]
    if stream == "stdout":
        stored = paths.log_dir(DRIVER) / "stdout"
        return [stored if size(stored) else paths.capture(DRIVER, stream, True)]
    return [paths.capture(task, stream, True) for task in (DRIVER, *workers)]


def _task_file(paths: ExecPaths, row: ExecRow, task: str, log: str) -> Path:
    if log not in _LOGS:
        raise Invalid("query.log", f"Unknown log {log[:40]!r}; use {', '.join(_LOGS)}")
    return paths.launcher_log if log == "launcherlog" else paths.capture(task, log, row.elastic)


def _lines(text: str | None) -> int | None:
    return whole(text, "lastlines", 0) if text else None


def _answer(services: Services, request: Request, chunks: Iterator[bytes]) -> Response:
    """Return text, or a JSON string for a client that accepts JSON with the highest weight."""
    if prefers_json(request.headers):
        return Streamed(services.load, json_string(chunks), media_type=JSON)
    return as_text(services, chunks)
