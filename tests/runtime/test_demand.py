"""Rows of execs as the scheduler sees them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from workloads import workload

from local_backend.runtime.demand import Demand
from local_backend.scheduler.model import ROOT, Machine
from local_backend.scheduler.slots import cpu_slots
from local_backend.store import execs
from local_backend.store.database import Database
from local_backend.workload import Service


def test_a_service_competes_for_the_minimum_of_its_row(tmp_path: Path) -> None:
    database = Database(tmp_path / "x.db")
    database.open()
    spec = workload(id="local-1", kind="service", elastic=True, num_worker=8, min_workers=1,
                    service=Service("m", 1, "key", "/run/kernels.sock", {}, kernels_per_slot=2))
    row = database.write(lambda c: execs.create(c, 1, spec, "", None, "/"))
    database.close()
    demand = Demand(Machine(cpu_slots(8)), lambda row, most: [], lambda row: None, lambda row: None)

    def bounds(wanted: int | None, least: int | None) -> tuple[int, int]:
        [job] = demand.jobs([replace(row, wanted=wanted, least=least)], {}, ROOT)
        return job.least, job.most

    assert [bounds(4, None), bounds(6, 5), bounds(None, 3), bounds(4, 1)] == [(1, 2), (3, 3), (2, 2), (1, 2)]
