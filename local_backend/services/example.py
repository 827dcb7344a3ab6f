"""The sample that comes with dlicmd: a first run for users without code of their own."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

from dlicmd.contract.argv import join_args
from dlicmd.sdk.paths import samples_dir
from local_backend.errors import NotFound
from local_backend.services.access import Caller
from local_backend.services.execs import ExecSelection
from local_backend.services.submissions import SubmissionRequest, SubmissionService
from local_backend.store.execs import ExecRow
from local_backend.submit.receive import ReceivedUpload

_SAMPLE = "digits"
#: Its data is read where it is.
_LEFT_OUT = shutil.ignore_patterns("data", "__pycache__", ".*")


@dataclass(frozen=True)
class ExampleService:
    """Trains the sample, as `dlicmd demo` does."""

    submissions: SubmissionService

    def is_offered(self, caller: Caller) -> bool:
        """Return whether the server can train the sample, and the caller has no execs yet."""
        return self._is_there and not self.submissions.execs.list(caller, ExecSelection(most=1))[0]

    def submit(self, caller: Caller) -> ExecRow:
        """Submit the sample. Raises NotFound (`http.no_such_path`) where it is not there, and the errors of a
        submission."""
        if not self._is_there:
            raise NotFound("http.no_such_path", "This server has no example")
        folder = self.submissions.folder()
        sample = samples_dir() / _SAMPLE
        words = ["--exec-start", "edtPyTorch", "--appName", "example", "--model-dir", _SAMPLE, "--model-main",
                 "train.py", "--numWorker", "2", "--cs-datastore-meta", f"type=fs,data_path={sample / 'data'}",
                 "--", "--epochs", "10"]
        try:
            shutil.copytree(sample, folder, ignore=_LEFT_OUT)  # a submission moves its files
            upload = ReceivedUpload([(path.name, path) for path in sorted(folder.iterdir())])
            return self.submissions.submit(caller, SubmissionRequest(join_args(words), upload, strict=True)).row
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @property
    def _is_there(self) -> bool:
        # On a server for a team, the program of a user may not be able to read the data of the sample.
        return self.submissions.execs.base.settings.embedded and (samples_dir() / _SAMPLE).is_dir()
