"""A training beside a service: it shrinks for a burst and grows back, with the same result."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from kernels import serve, want
from runtime_support import Bench, bench
from support import eventually

from dlicmd.contract import wire
from dlicmd.contract.states import FINISHED, KILLED

pytestmark = pytest.mark.integration

#: Ends with a digest of its weights.
TRAIN = """
import hashlib
import torch
from torch import nn
from torch.utils.data import Dataset
from fabric_model import FabricModel

class Samples(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, i):
        return torch.randn(8) + i, i % 3

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
FabricModel(model, lambda: (Samples(), Samples()), nn.functional.cross_entropy,
            torch.optim.AdamW(model.parameters(), lr=0.01)).train(60, 4, 4, validation_freq=1)
print("digest", hashlib.sha256(b"".join(t.numpy().tobytes() for t in model.state_dict().values())).hexdigest())
"""


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench(tmp_path_factory.mktemp("four"), slots=4, nursery_idle=600.0) as one:
        yield one


@pytest.fixture
def backend(four: Bench) -> Iterator[Bench]:
    """A shared backend with 4 slots and a nursery."""
    yield four
    four.end_all()


def slots_of(one: Bench, job: str) -> int:
    return len(json.loads(one.row(job).slots or "[]"))


def train(one: Bench, workers: int) -> str:
    return one.submit(
        TRAIN, framework="edtPyTorch", elastic=True, num_worker=workers,
        attributes={"snapshot_seconds": "3600", "hang_seconds": "120"})


def digest(one: Bench, job: str) -> str:
    assert one.wait(job).state == FINISHED, one.output(job, "stderr", "task0") + one.launcher_log(job)
    return re.findall(r"digest (\w+)", one.output(job, task="task0"))[-1]


def test_a_training_shrinks_for_a_burst_and_grows_back_with_the_same_result(backend: Bench) -> None:
    expected = digest(backend, train(backend, 1))
    service = serve(backend, least=1, most=4)
    eventually(lambda: backend.told(service, wire.READY_KERNELS) == 1, "the service is ready")
    job = train(backend, 4)
    for _ in range(2):
        eventually(lambda: slots_of(backend, job) == 3, "the training has all slots that the service does not want")
        eventually(lambda: backend.told(service, wire.READY_KERNELS) == 1, "the burst is over")
        want(backend, service, 4)
        eventually(lambda: backend.told(service, wire.READY_KERNELS) == 2, "the service has its share")
        assert slots_of(backend, job) <= 2
        want(backend, service, 1)
    assert digest(backend, job) == expected
    assert backend.told(service, wire.DEATHS) == 0
    backend.stop(service)
    assert backend.wait(service).state == KILLED


def test_kernels_are_forked_from_the_nursery(backend: Bench) -> None:
    """A kernel file runs in a fork that has torch imported; its module is the kernel program of the product."""
    files = {"main.py": "", "kernel.py": "import sys, os, json\n"
             "open('part', 'w').write(json.dumps(['torch' in sys.modules, sys.argv[0]]))\n"
             "os.rename('part', 'seen')\nos.write(int(os.environ['DLI_READY_FD']), b'x')\n"
             "import time\ntime.sleep(600)\n"}
    eventually(lambda: backend.supervisor.status()["nursery"]["state"] == "ready", "the nursery is ready")  # type: ignore[attr-defined]
    service = serve(backend, files=files, main="kernel.py", values={
        "command": None, "description": {"name": "digits", "kernel_path": "kernel.py"}})
    has_torch, program = json.loads(backend.wait_for_file(service, "seen"))
    assert has_torch and program.endswith("kernel.py")
    eventually(lambda: backend.told(service, wire.READY_KERNELS) == 1, "the kernel is ready")
