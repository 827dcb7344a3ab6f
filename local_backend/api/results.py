"""GET /execs/{id}/result: the files that the program stored below SAVED_MODEL_DIR, as a zip with a checksum.

Equal content gives the same zip, byte for byte, so a client can continue an interrupted download with a range.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from dlicmd.contract import wire
from local_backend.api.archives import KEPT_SECONDS, Archive, Archives, mark_of, pack
from local_backend.api.bulk import Streamed, bulk
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.description import OWN_EXECS, about
from local_backend.api.ranges import DESCRIBED, Part
from local_backend.api.route import Route
from local_backend.errors import NotFound, StorageFailed
from local_backend.runtime import launcher_log
from local_backend.services.load import PACKING, Load
from local_backend.services.services import Services
from local_backend.store.execs import ExecRow

router = APIRouter(tags=["execs"], route_class=Route)

_TYPE = "application/zip"
#: Maximum number of files that a line of the launcher log names.
_NAMED = 10


@router.get(wire.EXECS + "/{exec_id}/result")
@about(
    OWN_EXECS, errors={400: "exec.not_found exec.no_result", 416: "exec.result_range", 507: "exec.result_failed"},
    media=_TYPE, answers={206: "The remaining part"}, headers=DESCRIBED,
)
@bulk(PACKING)
def result(request: Request, services: TheServices, caller: TheCaller, exec_id: str) -> Response:
    """Return the trained model, whole or from a byte on. For a running exec, return what it has stored so far."""
    row = services.execs.find(caller, exec_id)
    archives: Archives = request.app.state.archives
    try:
        archive = _archive(services, archives, row)
    except OSError as problem:
        sentence = f"The server cannot pack the result ({problem.strerror}{_named(problem)})"
        raise StorageFailed("exec.result_failed", sentence) from None
    part = Part.of(request.headers, archive.digest, archive.length)
    if refused := part.refused(request.scope, "The result"):
        archive.file.close()
        return refused
    # Scripts split this header at the semicolons: no spaces, no quotes, size last.
    named = f"attachment;filename={result_name(row.id, archive.digest)};size={archive.length}"
    folder, keeper = services.execs.paths(row).model, archives if row.terminal else None
    return ArchiveResponse(services.load, archive, part, part.headers | {"Content-Disposition": named}, folder, keeper)


def _named(problem: OSError) -> str:
    return f": {problem.filename!r}" if isinstance(problem.filename, str) else ""


def result_name(exec_id: str, digest: bytes) -> str:
    """Return `dlpd-model-<16 digits>-<9 digits><execId>-result.zip`. The digits are derived from the content."""
    number = int.from_bytes(digest, "big")
    return f"dlpd-model-{number % 10**16:016d}-{number // 10**16 % 10**9:09d}{exec_id}-result.zip"


class ArchiveResponse(Streamed):
    """Sends a part of a zip. With a `keeper`, a zip whose transfer is interrupted is kept."""

    def __init__(  # noqa: PLR0917
        self, load: Load, archive: Archive, part: Part, headers: dict[str, str], folder: Path, keeper: Archives | None
    ) -> None:
        self._length = part.length - part.first
        super().__init__(load, archive.stream(part.first), part.status, headers, _TYPE)
        self._archive, self._folder, self._keeper = archive, folder, keeper

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer (ASGI)."""
        left = self._length

        async def watched(message: Message) -> None:
            nonlocal left
            await send(message)
            left -= len(message.get("body", b""))

        try:
            await super().__call__(scope, receive, watched)
        finally:
            # A client that has the last byte may disconnect before the answer has been closed.
            self._finish(left <= 0)

    def _finish(self, sent: bool) -> None:
        if sent or self._keeper is None:
            self._archive.file.close()
            return
        self._keeper.keep(self._folder, self._archive)
        loop = asyncio.get_running_loop()
        loop.call_later(KEPT_SECONDS, self._keeper.drop, self._folder, self._archive)


def _archive(services: Services, archives: Archives, row: ExecRow) -> Archive:
    """Return the zip of an exec: one that an interrupted transfer left, or a new one. Raises NotFound
    (`exec.no_result`), OSError."""
    folder = services.execs.paths(row).model
    left_out: list[str] = []
    mark = mark_of(folder, left_out)
    if left_out:
        launcher_log.note(
            services.execs.paths(row).launcher_log, "server",
            f"left out of the result: {len(left_out)} files with a second name (hard link) outside of RESULT_DIR: "
            f"{', '.join(left_out[:_NAMED])}", "WARNING")
    if not mark:
        raise NotFound(
            "exec.no_result",
            f"Exec {row.id} stored no file in its model folder (SAVED_MODEL_DIR); its state is {row.shown_state}",
        )
    return archives.take(folder, mark) or pack(folder, mark, services.base.settings.paths.incoming)
