"""Another version of the code is installed while an elastic job runs: the job keeps the version that it began with."""

from __future__ import annotations

import os
import shutil
import signal
import zipfile
from pathlib import Path

import pytest
from runtime_support import host_bench
from support import eventually

from dlicmd.contract.states import FINISHED

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
TRAIN = """
import os, time
import torch
from torch.nn import functional as F
from torch.utils.data import TensorDataset, default_collate
from callbacks import LoggerCallback
from fabric_model import FabricModel

def collate(samples):
    time.sleep(0 if os.path.exists("go") else 0.1)
    return default_collate(samples)

class Logger(LoggerCallback):
    def log_train_metrics(self, metrics, iteration, epoch, workers):
        with open("rows", "a") as file:
            print(os.getpid(), iteration, file=file)

torch.manual_seed(1)
model = torch.nn.Linear(4, 3)
data = TensorDataset(torch.randn(64, 4), torch.arange(64) % 3)
fabric = FabricModel(model, lambda: (data, data), F.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1),
                     driver_logger=Logger(), fn_batch_collate=collate)
fabric.train(12, 4, 2, 0)
"""


def test_a_job_keeps_its_code_when_other_code_is_installed(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for package in ("dlicmd", "local_backend"):
        shutil.copytree(ROOT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__"))
    with host_bench(tmp_path / "home", nursery_idle=600.0) as (host, one):
        host.kill()
        host.start({"PYTHONPATH": f"{tree}{os.pathsep}{tree / 'local_backend' / 'fabric'}"})
        job = one.submit(TRAIN, framework="edtPyTorch", elastic=True, num_worker=2,
                         attributes={"snapshot_seconds": "0.1"})
        checkpoints = one.paths(job).checkpoint
        eventually(lambda: list(checkpoints.rglob("*.snapshot")), "a snapshot is written")
        for path in [*(tree / "local_backend").rglob("*.py"), *(tree / "dlicmd").rglob("*.py")]:
            if "fabric" not in path.relative_to(tree).parts:
                path.write_text("raise ImportError('this is another version')\n")
        for folder in list(tree.rglob("__pycache__")):
            shutil.rmtree(folder)
        rows = one.paths(job).code(one.row(job).workload) / "rows"
        driver = int(one.wait_for_file(job, "rows").split()[0])
        os.kill(driver, signal.SIGKILL)
        eventually(lambda: {int(line.split()[0]) for line in rows.read_text().splitlines()} != {driver},
                   "the next driver trains")
        (rows.parent / "go").touch()
        row = one.wait(job)
    assert (row.state, row.attempt) == (FINISHED, 1), row.message
    assert not list(checkpoints.rglob("*")), "snapshots are left"


def test_a_job_without_a_nursery_keeps_its_engine_when_another_server_starts(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for package in ("dlicmd", "local_backend"):
        shutil.copytree(ROOT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__"))
    mark = ("\nimport os\nwith open('versions', 'a') as file:\n"
            "    print(os.getpid(), '%s', os.environ.get('DLI_WORKER_NUMBER'), file=file)\n")
    engine = tree / "local_backend" / "elastic" / "frames.py"
    text, path = engine.read_text(), {"PYTHONPATH": f"{tree}{os.pathsep}{tree / 'local_backend' / 'fabric'}"}
    engine.write_text(text + mark % "old")
    with host_bench(tmp_path / "home", nursery_idle=0.0) as (host, one):
        host.kill()
        host.start(path)
        job = one.submit(TRAIN, framework="edtPyTorch", elastic=True, num_worker=1)
        folder = one.paths(job).code(one.row(job).workload)
        eventually((folder / "rows").exists, "the job trains")
        host.kill()
        engine.write_text(text + mark % "new")
        host.start(path)
        eventually(lambda: "'new'" in zipped(one.settings.paths.fabric_home), "the other server has started")
        found = [line.split() for line in (folder / "versions").read_text().splitlines()]
        os.kill(next(int(pid) for pid, _, number in found if number == "1"), signal.SIGKILL)
        eventually(lambda: (folder / "versions").read_text().splitlines()[len(found):], "the next worker imports")
        (folder / "go").touch()
        row = one.wait(job)
        told = (folder / "versions").read_text().splitlines()
        assert (row.state, row.attempt) == (FINISHED, 1), row.message
        assert {line.split()[1] for line in told} == {"old"} and len(told) > len(found)
        two = one.submit("import os, local_backend.elastic.frames as f\nprint(open('versions').read())\n")
        assert one.wait(two).state == FINISHED and " new " in one.output(two)


def zipped(fabric_home: Path) -> str:
    with zipfile.ZipFile(fabric_home / "libs" / "fabric.zip") as archive:
        return archive.read("local_backend/elastic/frames.py").decode()
