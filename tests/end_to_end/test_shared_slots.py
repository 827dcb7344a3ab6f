"""Jobs share 4 slots while they train, and each has the same result as alone."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support import PATIENCE, eventually

from local_backend.settings import user_name

pytestmark = pytest.mark.integration

#: Trains slowly until the file GO exists, then fast; prints a digest of the trained model.
TRAIN = """
import hashlib, os, time
import torch
from torch import nn
from torch.utils.data import Dataset
from fabric_model import FabricModel

class Samples(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, i):
        if not os.path.exists(os.environ["GO"]):
            time.sleep(0.12)
        return torch.randn(8), i % 3

def datasets():
    return Samples(), Samples()

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
FabricModel(model, datasets, nn.functional.cross_entropy, optimizer).train(20, 4, 4, validation_freq=0)
print("digest", hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())
"""

#: Runs until the file GO exists.
WAIT = "import os, time\nwhile not os.path.exists(os.environ['GO']):\n    time.sleep(0.05)\n"


@pytest.fixture
def four(warm):
    warm.environment["DLI_SLOTS"] = "4"
    return warm


@pytest.fixture(scope="module")
def digest(tmp_path_factory) -> str:
    """The digest of the training alone, without a backend."""
    folder = tmp_path_factory.mktemp("alone")
    (folder / "train.py").write_text(TRAIN)
    environment = {**os.environ, "GO": "/", "RESULT_DIR": str(folder), "FABRIC_BACKEND": "pytorch"}
    fabric = Path(__file__).parents[2] / "local_backend" / "fabric"
    environment["PYTHONPATH"] = f"{fabric}:{Path(__file__).parents[2]}"
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE,
        check=True,
    )
    return re.search(r"digest (\w+)", done.stdout)[1]


class Run:
    """A submitted job that ends after `go`."""

    def __init__(self, user, name: str, text: str, *words: str) -> None:
        self._user = user
        self._go = user.folder / f"{name}-go"
        folder = user.model(name, train=text)
        self.id = user.submit(
            *words, "--model-dir", str(folder), "--model-main", "train.py", "--msd-env", f"GO={self._go}",
        )

    def go(self) -> None:
        self._go.touch()

    @property
    def shown(self) -> dict:
        return self._user.run("--exec-get", self.id).json

    def on(self, workers: int) -> bool:
        """Return whether the job trains with so many workers, and holds no other slots."""
        shown = self.shown
        return shown["state"] == "RUNNING" and shown.get("workers") == shown.get("slots") == workers

    def ended(self) -> str:
        """Wait for the end of the job and return its final state."""
        return eventually(
            lambda: (state := self.shown["state"]) in ("FINISHED", "ERROR", "KILLED") and state, f"{self.id} ends"
        )

    def digest(self) -> str:
        logs = self._user.run("--exec-trainoutlogs", self.id).out
        return re.search(r"digest (\w+)", logs)[1]

    def worker(self) -> int:
        """Return the process id of a worker, as the launcher log names it."""
        found = re.findall(r"task12n-\d+ started, pid (\d+)", self._user.run("--exec-launcherlogs", self.id).out)
        return next(int(pid) for pid in found if psutil.pid_exists(int(pid)))


NAME = user_name()


def kill_server(user) -> None:
    """Kill the server; the next command starts another."""
    server = psutil.Process(user.server_pid)
    server.kill()
    server.wait(PATIENCE)


ELASTIC = ("edtPyTorch", "--numWorker", "4")


def test_two_jobs_share_slots_equally_despite_deaths_and_the_last_gets_all(four, digest: str) -> None:
    first = Run(four, "first", TRAIN, *ELASTIC)
    eventually(lambda: first.on(4), "the first job has all slots")
    second = Run(four, "second", TRAIN, *ELASTIC)
    eventually(lambda: first.on(2) and second.on(2), "each job has 2 slots")
    os.kill(first.worker(), signal.SIGKILL)
    eventually(lambda: first.shown.get("deaths") == 1 and first.on(2), "a worker that died is replaced")
    kill_server(four)
    eventually(lambda: first.on(2) and second.on(2), "each job keeps 2 slots under the next server")
    first.go()
    assert first.ended() == "FINISHED"
    eventually(lambda: second.on(4), "the second job gets the slots of the first")
    second.go()
    assert second.ended() == "FINISHED"
    assert first.digest() == second.digest() == digest


def test_an_urgent_job_parks_an_elastic_job_until_it_ends_despite_deaths(four, digest: str) -> None:
    first = Run(four, "first", TRAIN, *ELASTIC)
    eventually(lambda: first.on(4), "the first job has all slots")
    patient = Run(four, "patient", WAIT, "PyTorch", "--workerDeviceNum", "4")
    urgent = Run(four, "urgent", WAIT, "PyTorch", "--workerDeviceNum", "4", "--msd-priority", "9000")
    eventually(lambda: urgent.shown["state"] == "RUNNING", "the urgent job runs")
    shown = first.shown
    assert (shown["state"], shown["slots"]) == ("RUNNING", 0)
    assert shown["message"].startswith("parked, waiting for 1 CPU slot") and shown["reason"] == "SLOTS"
    assert "secondsLeft" not in shown and "samplesPerSecond" not in shown
    why = four.run("--exec-why", first.id).out
    assert f"{first.id} is RUNNING: parked, " in why and f"  {urgent.id} holds 4 slots: " in why
    assert "the job continues when" in why and "wait: the job continues without any action" in why
    assert "1 running, 1 parked, 1 pending" in four.run("--top").out
    assert "waiting for 4 CPU slots" in patient.shown["message"]
    why = four.run("--exec-why", patient.id).out
    assert why.startswith(f"{patient.id} is PENDING: waiting for 4 CPU slots; ")
    assert f"  {urgent.id} holds 4 slots: holds them until it finishes\n" in why
    assert "when the jobs before it have started" in why or "when running jobs release 4 more slots" in why
    assert "wait: the job starts without any action" in why
    kill_server(four)
    eventually(lambda: first.shown["slots"] == 0 and urgent.shown["state"] == "RUNNING", "the first job is parked")
    four.run("--exec-stop", patient.id)
    urgent.go()
    assert urgent.ended() == "FINISHED"
    eventually(lambda: first.on(4), "the first job has all slots again")
    os.kill(first.worker(), signal.SIGKILL)
    eventually(lambda: first.shown.get("deaths") == 1 and first.on(4), "a worker that died is replaced")
    first.go()
    assert first.ended() == "FINISHED"
    assert first.digest() == digest


def test_jobs_of_a_pack_share_a_slot_and_all_views_show_their_allocations(four, digest: str) -> None:
    pack = ("--msd-pack-id", "small", "--workerCPULimit", "0.5")
    packed = [Run(four, name, TRAIN, *ELASTIC, *pack) for name in ("one", "two")]
    whole = Run(four, "whole", WAIT, "PyTorch", "--submit-user", "eve", "--consumer", "training")
    late = Run(four, "late", WAIT, "PyTorch", *pack)
    eventually(lambda: all(run.shown.get("workers") == 1 for run in packed), "both jobs train on 1 slot")
    eventually(lambda: whole.shown["state"] == "RUNNING", "the third job runs on a whole slot")
    eventually(lambda: "in the pack small, which has 0 left" in late.shown.get("message", ""), "the pack is full")
    top = four.run("--top", "-o", "json").json
    shares = {slot["id"]: {holder["id"]: holder["share"] for holder in slot["holders"]} for slot in top["slots"]}
    assert sorted(map(len, shares.values())) == [0, 0, 1, 2]
    assert {packed[0].id: 0.5, packed[1].id: 0.5} in shares.values()
    assert [job["id"] for job in top["queue"]] == [late.id]
    applications = four.run("--app-get-all", "-o", "table").out.splitlines()
    parent = next(i for i, line in enumerate(applications) if line.startswith(f"pack-{NAME}:small"))
    assert {line.split()[0] for line in applications[parent + 1 : parent + 4]} == {*(r.id for r in packed), late.id}
    tree = four.run("--rp-get-all").out
    assert tree.index("training") < tree.index("eve") < tree.index(whole.id)
    jobs = four.run("--pj-get-all").out
    assert all(run.id in jobs for run in (*packed, whole, late))
    four.run("--exec-delete", whole.id)
    usage = four.run("--rp-usage", "--query-args", "by=user", "-o", "json").json
    assert {row["key"] for row in usage["rows"]} == {NAME, "eve"}, "usage must include deleted jobs"
    for run in packed:
        run.go()
        assert run.ended() == "FINISHED"
        assert run.digest() == digest
    assert four.run("--app-stop-all").code == 0
    assert late.ended() == "KILLED"


def test_plans_are_applied_shown_and_enforced(four) -> None:
    file = four.folder / "plans.yaml"
    file.write_text("plans:\n- name: training\n- name: small\n  weight: 2\n  max: 1\n")
    applied = four.run("--rp-apply", str(file))
    assert applied.code == 0, applied
    assert applied.out == "local\n  training\n  small  weight=2  max=1\n"
    runs = [Run(four, name, WAIT, "PyTorch", "--consumer", "small") for name in ("first", "second")]
    eventually(lambda: "the plan /local/small may have" in runs[1].shown.get("message", ""), "the job is pending")
    assert four.run("--rp-get", "small").json == {"path": "/local/small", "name": "small", "weight": 2.0, "max": 1}
    assert four.run("--rp-delete", "small").code == 0
    eventually(lambda: runs[1].shown["state"] == "RUNNING", "the second job runs without the limit")
    for run in runs:
        run.go()
        assert run.ended() == "FINISHED"
    file.write_text("plans: [\n")
    refused = four.run("--rp-apply", str(file))
    assert (refused.code, refused.out) == (2, "")
    assert "plans.yaml: line 2: invalid YAML" in refused.err
    file.write_text("plans:\n- name: a\n  weight: -1\n")
    refused = four.run("--rp-apply", str(file))
    assert refused.code == 2
    assert "Plan local/a: weight must be a number from 0.001 to 1000, not -1" in refused.err
