"""Execs that wait, as the policy sees them. Derived from their rows; nothing here is a fact of its own."""

from __future__ import annotations

import time
from collections.abc import Iterable

from local_backend.jobspec import JobSpec
from local_backend.scheduler.policy import CPU, GPU, Request, Slot
from local_backend.store.execs import ExecRow


class Queue:
    """Requests of waiting execs. Waiting time is counted on the monotonic clock from when this server first saw it."""

    def __init__(self, total: Iterable[Slot]) -> None:
        self._has_gpus = any(slot.kind == GPU for slot in total)
        self._requests: dict[str, Request] = {}
        self._not_before: dict[str, float] = {}

    def requests(self, rows: Iterable[ExecRow]) -> list[Request]:
        """The requests of these rows in their order, without those that are put off; all others are forgotten."""
        known, self._requests = self._requests, {}
        now = time.monotonic()
        asked = []
        for row in rows:
            request = self._requests[row.id] = known.get(row.id) or self._request(row)
            if self._not_before.get(row.id, 0) <= now:
                self._not_before.pop(row.id, None)
                asked.append(request)
        self._not_before = {name: at for name, at in self._not_before.items() if name in self._requests}
        return asked

    def put_off(self, exec_id: str, seconds: float) -> None:
        """Do not try this exec again before `seconds` have passed."""
        self._not_before[exec_id] = time.monotonic() + seconds

    @property
    def timers(self) -> list[float]:
        """Moments at which a waiting exec may have waited too long, or may be tried again."""
        ends = [request.since + request.patience for name, request in self._requests.items()
                if request.patience is not None and name not in self._not_before]
        return [*ends, *self._not_before.values()]

    def forget(self, exec_id: str) -> None:
        """This exec waits no more."""
        self._requests.pop(exec_id, None)

    def __len__(self) -> int:
        return len(self._requests)

    def _request(self, row: ExecRow) -> Request:
        spec = row.job
        waited = max(0.0, time.time() - row.create_time)
        return Request(
            exec_id=row.id, kind=self.kind(spec), per_worker=max(1, spec.device_num),
            least=1 if spec.elastic else spec.num_worker, most=spec.num_worker,
            since=time.monotonic() - waited, patience=spec.pending_timeout,
        )

    def kind(self, spec: JobSpec) -> str:
        """Kind of slot that a job runs on: GPUs where there are any, unless it asks for the CPU."""
        return GPU if self._has_gpus and spec.device_type != CPU else CPU

    def remark(self, spec: JobSpec) -> str | None:
        """What the launcher log says about the kind of slot, None when it is what was asked for."""
        if spec.device_type == GPU and not self._has_gpus:
            return "asked for GPUs; this machine has none, so it runs on CPU slots"
        return None
