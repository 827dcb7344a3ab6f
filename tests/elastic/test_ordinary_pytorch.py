"""Ordinary PyTorch gives the same bits on workers that join and leave as in the script's own process."""

import subprocess
import sys

import pytest
import torch
from churn import Training
from ordinary import CASES, Case, FreezeBatchNorm, network, train
from resident import Resident
from support import PATIENCE

pytestmark = pytest.mark.integration


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """A function that trains without a backend, at full speed."""
    monkeypatch.setenv("RESULT_DIR", str(tmp_path / "alone"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("DLI_RUNNER_FD", raising=False)
    hurry = tmp_path / "now"
    hurry.touch()
    return lambda build: train(build, str(hurry))


#: Cases that every integration run trains, for the main features of the engine.
OFTEN = {
    "batch_norm_frozen_by_callback", "compiled_part", "group_added_by_callback", "reentrant_activation_checkpoints",
    "schedule_of_the_script", "spectral_norm",
}


@pytest.mark.parametrize("build", [
    build if build.__name__ in OFTEN else pytest.param(build, marks=pytest.mark.slow) for build in CASES
], ids=lambda build: build.__name__)
def test_one_then_three_then_two_workers_give_the_bits_of_a_single_process(tmp_path, alone, build):
    expected = alone(build)
    results = []
    training = Resident(tmp_path, 1, lambda: results.append(train(build, str(tmp_path / "result" / "hurry"))))
    training.begin()
    try:
        training.wait_for_step(2)
        training.resize(3)
        training.wait_for_step(training.status["step"] + 8)
        training.resize(2)
        training.finish()
    finally:
        training.abort()
    assert results == [expected]


def test_evaluation_mode_set_by_a_callback_lasts_for_the_epoch(alone):
    callback = FreezeBatchNorm()

    def build():
        model = network()
        return Case(model, torch.optim.SGD(model.parameters(), lr=0.1), extras={"user_callback": [callback]})

    alone(build)
    first, second, third, fourth, *_, last = callback.means
    assert first != second != third != fourth == last


#: All kinds of objects that a main script may define itself; workers do not run the script.
MAIN = """
import hashlib, os, time
import numpy as np, torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, default_collate
from callbacks import Callback
from fabric_model import FabricModel
from beside import Network

big = np.random.RandomState(0).rand(22, 100_000).astype(np.float32)
limits = {"clip": 0.01}


class Ramp(torch.optim.Optimizer):
    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})
        self.calls = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.calls += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad, alpha=group["lr"] / self.calls)


class Data(Dataset):
    def __init__(self, table):
        self.table = table

    def __len__(self):
        return len(self.table)

    def __getitem__(self, i):
        return torch.from_numpy(self.table[i, :6]), i % 3


def datasets_of(table):
    def datasets():
        return Data(table), Data(table[:9])
    return datasets


def clip(optimizer, *_):
    nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], limits["clip"])


def collate(samples):
    if not os.path.exists(os.path.join(os.environ["RESULT_DIR"], "hurry")):
        time.sleep(0.05)
    return default_collate(samples)


def error(outputs, labels):
    return (outputs.argmax(1) != labels).float().mean()


@torch.compile(backend="eager")
def loss(outputs, labels):
    return F.cross_entropy(outputs, labels)


class Count(Callback):
    def __init__(self):
        super().__init__()
        self.epochs = []

    def on_epoch_end(self, epoch, save_model=False):
        self.epochs.append(self.params["optimizer"].calls)


torch.manual_seed(1)
model = Network()
optimizer = Ramp(model.parameters(), lr=0.5)
optimizer.register_step_pre_hook(clip)
count = Count()
FabricModel(model, datasets_of(big), loss, optimizer, metrics=[error, lambda outputs, labels: outputs.std()],
            user_callback=[count], fn_batch_collate=collate, driver_logger=object()).train(40, 4, 3)
assert count.epochs == [2 * epoch for epoch in range(1, 41)], count.epochs
assert optimizer.calls == 80
print(hashlib.sha256(b"".join(t.numpy().tobytes() for t in model.state_dict().values())).hexdigest())
"""
BESIDE = """
from torch import nn


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x):
        return self.layers(x)
"""


def test_definitions_of_the_main_script_and_its_modules_reach_workers(tmp_path):
    training = Training(tmp_path, 1)
    script = training.code / "train.py"
    script.write_text(MAIN)
    (training.code / "beside.py").write_text(BESIDE)
    training.begin()
    try:
        training.wait_for_step(2)
        training.resize(2)
        ended = training.finish()
    finally:
        training.abort()
    assert ended.returncode == 0, ended.stderr
    alone = subprocess.run(
        [sys.executable, str(script)], env=training.environment(), cwd=script.parent, capture_output=True, text=True,
        timeout=PATIENCE, check=False,
    )
    assert alone.returncode == 0, alone.stderr
    assert ended.stdout.splitlines()[-1] == alone.stdout.splitlines()[-1]
