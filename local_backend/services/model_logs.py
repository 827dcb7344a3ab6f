"""What kernels have written, and why a model does not serve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from local_backend.errors import Invalid, StorageFailed
from local_backend.runtime.paths import worker_task
from local_backend.scheduler.model import Reason
from local_backend.services.access import Caller
from local_backend.services.execs import ExecService
from local_backend.services.executors import executors
from local_backend.services.models import ModelService
from local_backend.store import execs
from local_backend.store.models import FAILED, SERVING, STARTING, STORED, RevisionRow

#: Logs of a model: of a kernel, and of the process that starts kernels.
STREAMS = ("stdout", "stderr", "launcherlog")
#: Maximum bytes of one answer.
_MOST = 1 << 20


@dataclass(frozen=True)
class LogPiece:
    """A part of a log; `end` is the offset after its last byte, `kernel` the number of the kernel, 0 for none."""

    content: bytes
    end: int
    kernel: int


@dataclass(frozen=True)
class ModelReason:
    """Why a model does not serve, or has fewer kernels than it wants. `advice` is `wait`, `change` or `ask`; `starts`
    says what would start a kernel. The sentence is empty if there is nothing to say."""

    state: str
    sentence: str = ""
    advice: str = ""
    starts: str = ""


@dataclass(frozen=True)
class ModelLogs:
    """Questions about the kernels of models."""

    models: ModelService
    execs: ExecService
    #: Why an exec waits for slots, None if it does not.
    reason: Callable[[str], Reason | None]

    def read(  # noqa: PLR0917
        self, caller: Caller, name: str, stream: str, kernel: int | None, start: int, revision: int | None
    ) -> LogPiece:
        """Return a part of a log from an offset on, of the newest kernel unless `kernel` names another one. A cut off
        line at the end comes with the next part. Raises NotFound, AccessDenied, Invalid (`query.log`)."""
        if stream not in STREAMS:
            raise Invalid("query.log", f"stream: unknown log {stream[:40]!r}; use {', '.join(STREAMS)}")
        row = self._revision(caller, name, revision)
        found = None if row.exec_id is None else self.models.base.database.read(
            lambda c: execs.get(c, str(row.exec_id)))
        if found is None:
            return LogPiece(b"", 0, 0)
        paths = self.execs.paths(found)
        number = kernel or max(executors(found, paths), default=0)
        file = paths.launcher_log if stream == "launcherlog" else paths.capture(worker_task(max(1, number)), stream,
                                                                                True)
        try:
            opened = paths.opened(file)
            if opened is None:
                return LogPiece(b"", start, number)
            with opened:
                opened.seek(start)
                content = opened.read(_MOST)
        except OSError as problem:
            raise StorageFailed("exec.result_failed", f"The server cannot read the log of {name} ({problem.strerror})"
                                ) from None
        return LogPiece(content, start + len(content), number)

    def why(self, caller: Caller, name: str) -> ModelReason:
        """Return why a model does not serve, or has fewer kernels than it wants. Raises NotFound."""
        view = self.models.view(caller, name)
        if view.state == STORED:
            return ModelReason(STORED, f"model {name} is stopped", "change", f"dlim model start {name}")
        if view.state == FAILED:
            return ModelReason(FAILED, view.message, "change",
                               f"a new revision: dlim model deploy; or another try: dlim model start {name}")
        for one in reversed(view.revisions):
            found = self.reason(one.exec_id) if one.exec_id and one.state in (STARTING, SERVING) else None
            if found is not None and not view.ready(one.number):
                return ModelReason(view.state, f"revision {one.number} waits: {found.sentence}", found.advice,
                                   found.starts)
        if view.state == STARTING:
            return ModelReason(STARTING, view.message or f"the kernels of {name} are starting", "wait",
                               "when a kernel has finished on_kernel_start")
        return ModelReason(view.state, view.message)

    def _revision(self, caller: Caller, name: str, number: int | None) -> RevisionRow:
        view = self.models.owned(caller, name)
        if number is None:
            return view.main
        return self.models.numbered(view, number)
