"""Real trainings that rest after epochs: weights, optimizer and curves are those of a training without rests."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from runtime_support import Bench, bench, gone, host_bench, runner_of
from support import eventually

from dlicmd.contract.states import FINISHED, PENDING, RUNNING
from local_backend.curves import file as curve_file
from local_backend.runtime.launch import read_restarts

pytestmark = pytest.mark.integration

#: Dropout, BatchNorm, AdamW, random samples, a callback with state; ends with a digest of weights and optimizer.
TRAIN = """
import hashlib
import torch
from torch import nn
from torch.utils.data import Dataset
from callbacks import Callback
from fabric_model import FabricModel

class Samples(Dataset):
    def __len__(self):
        return 38

    def __getitem__(self, i):
        return torch.randn(8) + i, i % 3

class Schedule(Callback):
    def __init__(self):
        self.seen = []

    def on_epoch_begin(self, epoch):
        self.seen.append(epoch)
        for group in self.params["optimizer"].param_groups:
            group["lr"] = 0.02 / (1 + len(self.seen))

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
FabricModel(model, lambda: (Samples(), Samples()), nn.functional.cross_entropy, optimizer,
            user_callback=[Schedule()]).train(5, 4, 4, validation_freq=1)
state = [*model.state_dict().values()]
for one in optimizer.state_dict()["state"].values():
    state += one.values()
print("digest", hashlib.sha256(b"".join(t.numpy().tobytes() for t in state)).hexdigest())
"""
#: The digest, and the values of each validation.
Result = tuple[str, list[Any]]


def begin(one: Bench, rest_after: int | None, workers: int) -> str:
    return one.submit(
        TRAIN, rest_after=rest_after, framework="edtPyTorch", elastic=True, num_worker=workers,
        attributes={"snapshot_seconds": "3600", "hang_seconds": "120"},
    )


def result(one: Bench, job: str) -> Result:
    """Return the result of a training when it has ended."""
    assert one.wait(job).state == FINISHED, one.output(job, "stderr", "task0") + one.launcher_log(job)
    return re.findall(r"digest (\w+)", one.output(job, task="task0"))[-1], validations(one, job)


def validations(one: Bench, job: str) -> list[Any]:
    with one.paths(job).curves.open("rb") as curves:
        found = curve_file.read(curves, "", ()).curves
    tests = [curve for curve in found if curve["name"].startswith("test/")]
    return sorted([curve["name"], [point[:2] for point in curve["points"]]] for curve in tests)


@pytest.fixture(scope="module", params=[0, 4], ids=["ended", "living"])
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Backends in which resting jobs end their processes, or keep them."""
    with bench(tmp_path_factory.mktemp("rests"), slots=3, nursery_idle=600.0, rested_kept=request.param) as one:
        yield one


@pytest.fixture(scope="module")
def through(backend: Bench) -> Result:
    """The result of a training without rests."""
    return result(backend, begin(backend, None, 1))


def rests(one: Bench, job: str, epochs: int) -> None:
    """Wait until a job rests with all values of its epochs, and has the processes that it should have."""
    one.wait_rested(job, epochs)
    if one.settings.rested_kept:
        assert one.row(job).state == RUNNING and not gone(driver_of(one, job))
    else:
        eventually(lambda: one.row(job).state == PENDING and not one.leftovers(job), f"{job} ends its processes")
    assert {len(points) for _, points in validations(one, job)} == {epochs}


def driver_of(one: Bench, job: str) -> int:
    return int(re.findall(r"task0 started, pid (\d+)", one.launcher_log(job))[-1])


def kill(one: Bench, job: str, victim: str) -> None:
    os.kill(runner_of(one, job) if victim == "runner" else driver_of(one, job), signal.SIGKILL)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_training_that_rested_twice_equals_one_that_trained_through(
    backend: Bench, through: Result, workers: int
) -> None:
    job = begin(backend, 1, workers)
    rests(backend, job, 1)
    backend.promote(job, 3)
    rests(backend, job, 3)
    backend.promote(job)
    assert result(backend, job) == through
    assert "RECOVERING" not in backend.history(job) and read_restarts(backend.paths(job)).fruitless == 0


@pytest.mark.parametrize("victim", ["driver", "runner"])
def test_a_death_before_or_during_a_rest_changes_nothing(backend: Bench, through: Result, victim: str) -> None:
    job = begin(backend, 2, 2)
    backend.wait_running(job)
    eventually(lambda: "task12n-2 started" in backend.launcher_log(job), "it has workers")
    kill(backend, job, victim)
    backend.wait_rested(job, 2)
    if backend.settings.rested_kept:
        kill(backend, job, victim)
    backend.promote(job)
    assert result(backend, job) == through


def test_values_that_a_killed_runner_had_not_kept_are_reported_again(backend: Bench, through: Result) -> None:
    job = begin(backend, 3, 1)
    rests(backend, job, 3)
    kill_in_time(backend, job)
    curves = backend.paths(job).curves
    lines = curves.read_bytes().splitlines(keepends=True)
    curves.write_bytes(b"".join(lines[:1]))  # as if the runner had died before it wrote the values
    backend.promote(job)
    assert result(backend, job) == through


def kill_in_time(one: Bench, job: str) -> None:
    """Kill the runner if there is one, and wait until the job has no processes."""
    if one.settings.rested_kept:
        kill(one, job, "runner")
        eventually(lambda: one.row(job).state == PENDING, f"{job} has no processes")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kept", [0, 4])
def test_kills_of_anything_around_rests_change_nothing(tmp_path: Path, kept: int, seed: int) -> None:
    """4 trainings that rest up to 3 times; server, runner, driver and workers are killed, and some promotions come
    before the job rests."""
    draw = random.Random(seed)
    with host_bench(tmp_path, slots=3, nursery_idle=600.0, rested_kept=kept) as (host, one):
        expected = result(one, begin(one, None, 1))
        for _ in range(4):
            job, ahead, kills = begin(one, 1, draw.choice((1, 2, 3))), [2, 3, None], 3
            while not (row := one.row(job)).terminal:
                waits = 0.3 if row.rested is not None else 0.02
                if ahead and draw.random() < waits:
                    one.promote(job, ahead.pop(0))
                if kills and draw.random() < 0.1:
                    kills -= 1
                    disturb(draw, host, one, job)
                time.sleep(0.05)  # the pace of the random events
            assert result(one, job) == expected


def disturb(draw: random.Random, host: Any, one: Bench, job: str) -> None:
    """Kill something, if it is there."""
    victim = draw.choice(("server", "runner", "task0", "task12n"))
    if victim == "server":
        host.restart()
    elif one.paths(job).launcher_log.exists():
        found = re.findall(rf"{victim}\S* started, pid (\d+)", one.launcher_log(job))[-1:]
        pids = [runner_of(one, job)] if victim == "runner" else [int(pid) for pid in found]
        for process in one.leftovers(job):
            if process.pid in pids:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
