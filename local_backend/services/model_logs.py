"""What kernels have written, and why a model does not serve."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from local_backend.errors import Invalid, StorageFailed
from local_backend.runtime.paths import ExecPaths, worker_task
from local_backend.scheduler.model import CPU, GPU, Reason
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
#: An offset contains the number of the kernel above so many bits, and the position in its log below them.
_BITS = 40


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
        """Return a part of a log from an offset on, of the newest kernel unless `kernel` names another one. Without
        `kernel`, the next part is of a newer kernel when nothing more is left of this one. An offset beyond the end of
        a log, which was shortened since, is 0. Raises NotFound, AccessDenied, Invalid (`query.log`)."""
        if stream not in STREAMS:
            raise Invalid("query.log", f"stream: unknown log {stream[:40]!r}; use {', '.join(STREAMS)}")
        row = self._revision(caller, name, revision)
        found = None if row.exec_id is None else self.models.base.database.read(
            lambda c: execs.get(c, str(row.exec_id)))
        if found is None:
            return LogPiece(b"", start, 0)
        paths, at = self.execs.paths(found), start & ((1 << _BITS) - 1)
        if stream == "launcherlog":
            content, at = _part(paths, paths.launcher_log, at)
            return LogPiece(content, at + len(content), 0)
        newest = max(executors(found, paths), default=0)
        number = kernel or start >> _BITS or newest
        content, at = _part(paths, paths.capture(worker_task(max(1, number)), stream, True), at)
        if not content and kernel is None and newest > number:
            number = newest  # the kernel has been replaced
            content, at = _part(paths, paths.capture(worker_task(number), stream, True), 0)
        return LogPiece(content, (number << _BITS) + at + len(content), number)

    def tail(  # noqa: PLR0917
        self, caller: Caller, name: str, stream: str, kernel: int | None, revision: int | None, most: int
    ) -> LogPiece:
        """Return the last bytes of a log, at most `most`, of the newest kernel unless `kernel` names another one.
        Raises the errors of `read`."""
        piece = self.read(caller, name, stream, kernel, 0, revision)
        content, end = piece.content[-most:], piece.end
        while piece.content:
            piece = self.read(caller, name, stream, kernel or piece.kernel or None, end, revision)
            content, end = (content + piece.content)[-most:], piece.end
        return LogPiece(content, end, piece.kernel)

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
                               "when a kernel has loaded the model (on_kernel_start)")
        return ModelReason(view.state, view.message or self._without_gpu(view.revisions))

    def _without_gpu(self, revisions: Sequence[RevisionRow]) -> str:
        """Return the sentence about kernels that run on CPU slots although their profile asks for GPUs; "" if none
        do."""
        ids = {one.exec_id for one in revisions if one.exec_id and one.state == SERVING}
        rows = self.models.base.database.read(lambda c: execs.with_ids(c, ids)) if ids else {}
        if any(row.workload.resources.device_type == GPU and self.execs.sight.kind(row) == CPU
               for row in rows.values()):
            return "its profile asks for GPUs (kernel.gpu), but this machine has none: its kernels run on CPU slots"
        return ""

    def _revision(self, caller: Caller, name: str, number: int | None) -> RevisionRow:
        view = self.models.owned(caller, name)
        if number is None:
            return view.main
        return self.models.numbered(view, number)


def _part(paths: ExecPaths, file: Path, start: int) -> tuple[bytes, int]:
    """Return bytes of a log from a position on, none if there is no log, and this position: 0 if the log has become
    shorter. Raises StorageFailed."""
    opened = paths.opened(file)
    if opened is None:
        return b"", start
    try:
        with opened:
            begin = 0 if start > opened.seek(0, os.SEEK_END) else start
            opened.seek(begin)
            return opened.read(_MOST), begin
    except OSError as problem:
        sentence = f"The server cannot read the log {file.name} ({problem.strerror})"
        raise StorageFailed("exec.result_failed", sentence) from None
