"""Bodies with files, which are written to disk as they arrive."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from local_backend.api.bulk import resting
from local_backend.api.errors import BodyRefused
from local_backend.errors import BackendError, StorageFailed, TooSlow
from local_backend.services.access import Caller
from local_backend.services.services import Services
from local_backend.services.submissions import SubmissionService
from local_backend.submit.receive import MOST_OF_FOLDER, ReceivedUpload, receive

#: Seconds for which the server reads the rest of a refused body, so that the client gets the answer.
_DRAIN = 60.0


@contextlib.asynccontextmanager
async def upload_of(
    request: Request, services: Services, caller: Caller, action: str, *, packed: bool = False, folders: bool = False
) -> AsyncIterator[tuple[ReceivedUpload, Path]]:
    """Yield a body with files, and the folder that they are in until the end of the block. An error in the block is
    answered when the client has sent the rest of its body. With `packed`, a body without a form is one archive. With
    `folders`, a form may have all files of a folder."""
    folder = services.submissions.folder()
    try:
        services.load.users.submission(caller.name)
        with services.load.users.upload(caller.name):
            upload = await received(
                request, services, caller, folder, keyed=True, action=action, packed=packed, folders=folders)
        yield upload, folder
    except TooSlow:
        raise
    except BackendError:
        await drain(request.stream())
        raise
    finally:
        await run_in_threadpool(shutil.rmtree, folder, ignore_errors=True)


async def received(
    request: Request, services: Services, caller: Caller, folder: Path, *, keyed: bool,
    action: str = "exec.submit", packed: bool = False, folders: bool = False,
) -> ReceivedUpload:
    """Read the body of a submission into `folder`. `action` names it in audit records. Raises BackendError for a body
    that the server refuses."""
    submissions, limits = services.submissions, services.base.settings.limits
    declared = request.headers.get("content-length", "0")
    size = int(declared) if declared.isdecimal() else 0
    await run_in_threadpool(submissions.check_upload, caller, size, keyed, action)
    try:
        try:
            folder.mkdir(mode=0o700, parents=True)
        except OSError as problem:
            raise StorageFailed.from_os(problem) from None
        content_type = request.headers.get("content-type", "")
        most = services.base.settings.quotas.upload_seconds
        async with resting():
            return await asyncio.wait_for(
                receive(request.stream(), content_type, folder, limits.upload_bytes, packed=packed,
                        **({"parts": MOST_OF_FOLDER} if folders else {})), most)
    except asyncio.TimeoutError:
        raise _refused(submissions, caller, action, TooSlow(
            "quota.upload_seconds", f"the upload takes longer than {most} seconds, the limit of this server")) from None
    except BodyRefused as problem:
        raise _refused(submissions, caller, action, problem.problem) from None
    except BackendError as problem:
        raise _refused(submissions, caller, action, problem) from None


def _refused(
    submissions: SubmissionService, caller: Caller, action: str, problem: BackendError
) -> BackendError:
    """Record the refusal of an upload, and return its error."""
    submissions.refused(caller, problem, action)
    return problem


async def drain(body: AsyncIterator[bytes]) -> None:
    """Read and discard the rest of the body."""

    async def rest() -> None:
        async for _ in body:
            pass

    try:
        async with resting():
            await asyncio.wait_for(rest(), _DRAIN)
    except (asyncio.TimeoutError, BodyRefused, ClientDisconnect, RuntimeError):
        return
