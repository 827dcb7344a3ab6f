"""POST /console/example: train the sample that comes with dlicmd, on a server with one user. `dlicmd demo` does the
same."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from dlicmd.contract.argv import join_args
from dlicmd.sdk.paths import samples_dir
from local_backend.api.bulk import in_turn
from local_backend.api.depends import TheCaller, TheServices
from local_backend.console import places
from local_backend.console.changes import done
from local_backend.console.route import router as pages
from local_backend.errors import NotFound
from local_backend.services.access import Caller
from local_backend.services.execs import ExecSelection
from local_backend.services.load import UPLOAD
from local_backend.services.services import Services
from local_backend.services.submissions import SubmissionRequest
from local_backend.store.execs import ExecRow
from local_backend.submit.receive import ReceivedUpload

router = pages()


def is_offered(services: Services, caller: Caller) -> bool:
    """Return whether the caller has no runs yet, and the server can train the sample."""
    return _is_there(services) and not services.execs.list(caller, ExecSelection(most=1))[0]


@router.post(places.EXAMPLE)
async def train(request: Request, services: TheServices, caller: TheCaller) -> Response:
    """Start a run of the sample, and lead the browser to it. Raises NotFound, and the errors of a submission."""
    if not _is_there(services):
        raise NotFound("http.no_such_path", "This server has no example")
    folder = services.submissions.folder()
    try:
        row = await in_turn(services.load, UPLOAD, caller.name, partial(_submitted, services, caller, folder))
    finally:
        await run_in_threadpool(shutil.rmtree, folder, ignore_errors=True)
    return done(request, f"{places.RUNS}/{row.id}")


def _sample() -> Path:
    return samples_dir() / "digits"


def _is_there(services: Services) -> bool:
    # On a server for a team, users may not be able to read the data of the sample.
    return services.base.settings.embedded and _sample().is_dir()


def _submitted(services: Services, caller: Caller, folder: Path) -> ExecRow:
    """Submit a copy of the sample: a submission moves its files."""
    code = shutil.copytree(_sample(), folder / "code", ignore=shutil.ignore_patterns("data", "__pycache__", ".*"))
    data = f"type=fs,data_path={_sample() / 'data'}"
    words = ["--exec-start", "edtPyTorch", "--appName", "example", "--model-dir", "digits", "--model-main", "train.py",
             "--numWorker", "2", "--cs-datastore-meta", data, "--", "--epochs", "10"]
    upload = ReceivedUpload([(path.name, path) for path in sorted(Path(code).iterdir())])
    return services.submissions.submit(caller, SubmissionRequest(join_args(words), upload, strict=True)).row
