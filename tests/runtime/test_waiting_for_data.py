"""While a job waits for data, its pending timeout does not run, but the job keeps its place in the queue."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from workloads import workload

from local_backend.data.order import DELIVERED, FetchOutcome
from local_backend.runtime import fetching as fetching_module
from local_backend.runtime.demand import Demand
from local_backend.runtime.fetching import Fetching
from local_backend.scheduler.model import Machine
from local_backend.scheduler.plans import ROOT
from local_backend.scheduler.slots import cpu_slots
from local_backend.scheduler.urgency import waited
from local_backend.settings import Settings
from local_backend.store.execs import ExecRow
from local_backend.workload import DataSource

HOUR = 3600.0
ELSEWHERE = DataSource("x", "s3", "download", kind="s3", connection={"type": "s3"}, location={"bucket": "b"})


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(tmp_path, tmp_path / "data", tmp_path / "results", "ada")


@pytest.fixture
def fetching(settings: Settings) -> Iterator[Fetching]:
    found = Fetching(settings, cast("Any", None), cast("Any", None))
    yield found
    found.close()


def submitted(settings: Settings, *sources: DataSource) -> ExecRow:
    """Return an exec that was submitted 1 hour ago and may wait 30 minutes for slots."""
    spec = workload(sources=sources, pending_timeout=int(HOUR / 2))
    row = ExecRow(
        number=1, id="local-1", creator="ada", framework="PyTorch", app_name="a", args="", spec=spec.to_json(),
        kind=spec.kind, parent=None, bundle=None, data_source=None, elastic=False, num_worker=1, work_dir="/",
        state="SUBMITTED", attempt=0, slots=None,
        create_time=time.time() - HOUR, start_time=None, end_time=None, exit_code=None, message=None, reason=None,
        stop_requested=False, deleted=False, pinned=None, progress=None, rest_after=None, rested=None, promoted=None,
        wanted=None, least=None,
    )
    settings.paths.job(row.id, "ada").fetching.mkdir(parents=True)
    return row


def patience_begins(fetching: Fetching, row: ExecRow) -> tuple[float, float]:
    """Return the seconds that a job has waited for slots: for its pending timeout and for its place in the queue."""
    demand = Demand(Machine(cpu_slots(2)), lambda row, most: [], lambda row: None, fetching.arrived)
    [job] = demand.jobs([row], {}, ROOT)
    return time.monotonic() - job.entered, waited(job, time.monotonic())


def test_the_pending_timeout_begins_when_the_data_has_arrived(settings: Settings, fetching: Fetching) -> None:
    row = submitted(settings, ELSEWHERE)
    paths = settings.paths.job(row.id, "ada")
    fetching.turn([row], lambda row: paths)
    assert not fetching.ready(row) and fetching.arrived(row) is None
    FetchOutcome(DELIVERED).write(paths.fetch_outcome)
    fetching.attend(row)
    assert fetching.ready(row)
    since_data, in_queue = patience_begins(fetching, row)
    assert since_data < HOUR / 2 and in_queue >= HOUR - 1, "the job must keep its place and its whole timeout"
    os.utime(paths.fetch_outcome, (row.create_time + HOUR / 4,) * 2)
    assert patience_begins(fetching, row)[0] >= HOUR * 3 / 4 - 1, "a restarted server must read the time from the file"


def test_the_pending_timeout_begins_at_once_without_remote_data(settings: Settings, fetching: Fetching) -> None:
    row = submitted(settings)
    fetching.turn([row], lambda row: settings.paths.job(row.id, "ada"))
    since, in_queue = patience_begins(fetching, row)
    assert since >= HOUR - 1 and in_queue >= HOUR - 1


def test_a_fetcher_that_cannot_start_is_retried_with_growing_pauses(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(fetching_module, "time", SimpleNamespace(monotonic=lambda: clock.now, time=time.time))
    row = submitted(settings, ELSEWHERE)
    paths = settings.paths.job(row.id, "ada")
    tries: list[float] = []

    class Full:
        """Connections that fail because the disk is full."""

        def state(self, row: ExecRow) -> list[Any]:
            tries.append(clock.now)
            raise OSError("no space")

    fetching = Fetching(settings, cast("Any", None), cast("Any", Full()))
    for _ in range(3):
        fetching.turn([row], lambda row: paths)
        fetching.attend(row)
        fetching.attend(row)  # The retry is not due yet.
        [clock.now] = fetching.timers
    assert tries == [1000.0, 1001.0, 1003.0] and clock.now == 1007.0
    assert len(caplog.records) == 1
    fetching.turn([], lambda row: paths)
    assert fetching.timers == []
    fetching.close()
