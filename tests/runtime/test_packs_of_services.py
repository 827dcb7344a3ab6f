"""Services in a pack: kernels of several models on one GPU, found by a fake NVML."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kernels import kernel, left, serve, want
from runtime_support import Bench, bench, gone, host_bench
from support import eventually

from dlicmd.contract import wire
from dlicmd.contract.states import RUNNING

pytestmark = pytest.mark.integration

GPUS = [{"uuid": "GPU-a"}, {"uuid": "GPU-b"}]
Set = Callable[[list[dict[str, Any]]], None]


def packed(one: Bench, pack: str = "p", share: float = 0.25, **values: Any) -> str:
    """Serve a model in a pack."""
    return serve(one, device_type="gpu", pack=pack, gpu_limit=share, most=4, **values)


def ready(one: Bench, exec_id: str, count: int) -> None:
    """Wait until so many kernels are ready, and no other ones run."""
    eventually(lambda: (one.told(exec_id, wire.READY_KERNELS), one.told(exec_id, wire.WORKERS)) == (count, count),
               f"{count} kernels are ready")


def slots_of(one: Bench, exec_id: str) -> list[str]:
    return json.loads(one.row(exec_id).slots or "[]")


def test_kernels_of_several_models_share_the_gpu_of_their_pack(there: Set, tmp_path: Path) -> None:
    there(GPUS)
    with bench(tmp_path / "home", slots=None) as one:
        first, second, other = packed(one), packed(one), packed(one, pack="q")
        devices = [kernel(one, job, 1)["CUDA_VISIBLE_DEVICES"] for job in (first, second, other)]
        assert devices[0] == devices[1] != devices[2]
        want(one, first, 3)
        ready(one, first, 3)
        assert {kernel(one, first, number)["CUDA_VISIBLE_DEVICES"] for number in (2, 3)} == {devices[0]}
        places = {place.slot.id: place for place in one.supervisor.places()}  # type: ignore[attr-defined]
        shared = places[slots_of(one, first)[0]]
        assert {(holder.exec_id, holder.share) for holder in shared.holders} == {(first, 0.75), (second, 0.25)}
        want(one, second, 4)  # each now has half of the GPU
        ready(one, first, 2)
        ready(one, second, 2)
        assert left(one, first, 3) or left(one, first, 2) or left(one, first, 1)


def test_a_model_waits_for_a_pack_without_room(there: Set, tmp_path: Path) -> None:
    there(GPUS)
    with bench(tmp_path / "home", slots=None) as one:
        first = packed(one, least=3)
        ready(one, first, 3)
        second = packed(one, share=0.5)
        sentence = "waiting for 0.5 of a GPU slot in the pack p, which has 0.25 left"
        eventually(lambda: one.waits_for(second) == sentence, "the reason names the pack")
        one.stop(first)
        ready(one, second, 1)


def test_no_kernel_starts_before_another_one_has_left_the_gpu(there: Set, tmp_path: Path) -> None:
    there(GPUS[:1])
    with bench(tmp_path / "home", slots=None) as one:
        first = packed(one, wanted=4, files={"stay": ""}, values={"leave_timeout": 1.0})
        ready(one, first, 4)
        second = packed(one)
        kernel(one, second, 1)
        assert slots_of(one, first) == ["gpu-0"] * 3
        eventually(lambda: one.told(first, wire.WORKERS) == 3, "the runner reports its kernels")


def test_kernels_of_a_pack_survive_the_server(there: Set, tmp_path: Path) -> None:
    there(GPUS)
    with host_bench(tmp_path / "home", slots=2) as (host, one):
        jobs = [serve(one, pack="p", cpu_limit=0.25, most=4, wanted=2) for _ in range(2)]
        before = [kernel(one, job, number)["pid"] for job in jobs for number in (1, 2)]
        host.kill()
        host.start()
        want(one, jobs[0], 1)
        eventually(lambda: len(slots_of(one, jobs[0])) == 1, "a kernel has left")
        assert len(slots_of(one, jobs[1])) == 2
        assert [one.row(job).state for job in jobs] == [RUNNING] * 2
        assert sum(not gone(pid) for pid in before) == 3
