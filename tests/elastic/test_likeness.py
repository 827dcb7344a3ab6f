"""Workers with different data end the job, and the message names the difference."""

import random

import numpy as np
import pytest
import torch
from fake_runner import FakeRunner
from scripts import lay_out
from small import fabric
from torch.utils.data import Dataset, IterableDataset

from local_backend.elastic.data import probes
from local_backend.elastic.data.data_sets import DataSets
from local_backend.elastic.data.probes import Probe
from local_backend.elastic.hub.boundary import difference

SCRIPT = """
import os, random
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, IterableDataset, Sampler
from fabric_model import FabricModel

worker = lambda: int(os.environ.get("DLI_WORKER_NUMBER", 0))

class Data(Dataset):
    def __init__(self, offset=0.0, turns=10**6):
        self.offset, self.turns, self.calls = offset, turns, 0

    def __len__(self):
        return 20

    def __getitem__(self, i):
        self.calls += 1
        return torch.ones(4) * i + self.offset + worker() * (self.calls > self.turns) + torch.randn(4), i % 3

class Stream(IterableDataset):
    def __init__(self):
        self.passes = 0

    def __iter__(self):
        self.passes += 1
        return iter([(torch.ones(4) * i + worker() * (self.passes > 6), i % 3) for i in range(20)])

class Own(Sampler):
    def __iter__(self):
        return iter([worker(), 5])

def datasets():
    return DATA

model = nn.Linear(4, 3)
FabricModel(model, datasets, F.cross_entropy, torch.optim.SGD(model.parameters(), 0.1), driver_logger=object(),
            OPTIONS).train(8, 4, 2)
print("reached the end")
"""


@pytest.mark.integration
@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        ("Data(worker())", "", "differ between workers: training sample"),
        ("Data(), Data(worker())", "", "differ between workers: test sample"),
        ("Data(turns=60)", "", "differ between workers after epoch"),
        ("Data()", "sampler=Own()", "differ between workers: order of the samples of epoch 0"),
        ("Stream()", "", "differ between workers after epoch"),
    ],
)
def test_data_that_differ_between_workers_end_the_job(tmp_path, data, options, words):
    script = lay_out(tmp_path, SCRIPT.replace("DATA", data).replace("OPTIONS", options))
    ended = FakeRunner(tmp_path, 2).run(script)
    assert ended.returncode == 1
    assert words in ended.stderr.splitlines()[-1]
    assert "differs between worker" in ended.stderr.splitlines()[-1]
    assert "reached the end" not in ended.stdout


def test_a_difference_is_named_with_its_likely_cause():
    known = {"length of the test set": "5", "training sample 3": "a", "order of the samples of epoch 0": "x"}
    assert difference(known, known, (1, 2)) is None
    assert difference(known, {"training sample 4": "b"}, (1, 2)) is None
    assert "random numbers only from generators" in difference(known, {"training sample 3": "b"}, (1, 2))
    assert "not on the process" in difference(known, {"training sample 3": "b"}, (1, 2), 4)
    assert "indices of a sampler must depend" in difference(known, {"order of the samples of epoch 0": "y"}, (1, 2))
    assert difference(known, {"length of the test set": "4"}, (3, 2)) == (
        "the data sets differ between workers: length of the test set differs between worker 3 and worker 2; "
        "datasets_function must return the same data in every worker"
    )


class Noisy(Dataset):
    def __init__(self, breaks=()):
        self.breaks = breaks
        self.loaded = []

    def __len__(self):
        return 50

    def __getitem__(self, index):
        self.loaded.append(index)
        if index in self.breaks:
            raise KeyError(index)
        return {"x": torch.rand(2) + random.random() + np.random.rand(), "name": f"{index}"}


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.rand(1)


def probe_of(*sets, **options):
    """Return a probe and the engine's training set."""
    model, _ = fabric(**options)
    model._job.datasets_function = lambda: sets
    model._job.recipe = model._recipe
    data = DataSets(model._job, 5, None, lambda _: None)
    return Probe(data, 5), data.train


def test_workers_with_the_same_data_describe_it_alike():
    torch.manual_seed(1)
    one, _ = probe_of(Noisy(), Noisy())
    random.seed(3)
    before = torch.get_rng_state().tolist()
    other, _ = probe_of(Noisy(), Noisy())
    assert torch.get_rng_state().tolist() == before
    assert one.first == other.first
    assert sum(name.startswith("training sample") for name in one.first) == probes.TRAINING
    assert sum(name.startswith("test sample") for name in one.first) == probes.TEST
    for epoch in range(4):
        assert one.of_epoch(epoch) == other.of_epoch(epoch) != {}
    assert len({tuple(one.of_epoch(epoch)) for epoch in range(4)}) > 1


def test_samples_that_raise_are_left_to_training():
    probe, _ = probe_of(Noisy(breaks=range(50)), None)
    assert set(probe.first) == {"length of the training set", "length of the test set"}
    assert probe.of_epoch(0) == {}


def test_slow_samples_are_loaded_only_before_training(monkeypatch):
    monkeypatch.setattr(probes, "SLOW", -1.0)
    data = Noisy()
    probe, _ = probe_of(data, None, sampler=[3, 4])
    loaded = len(data.loaded)
    assert set(probe.of_epoch(1)) == {"order of the samples of epoch 1"}
    assert len(data.loaded) == loaded


def test_a_stream_is_described_by_the_samples_of_training():
    probe, stream = probe_of(Endless(), None, samples_per_epoch=40)
    assert {name for name in probe.first if "sample " in name} == {f"training sample {i}" for i in range(4)}
    other, shifted = probe_of(Endless(), None, samples_per_epoch=40)
    stream.take([(1, place) for place in range(40)])
    shifted.take([(1, 39)])
    assert probe.of_epoch(1) == other.of_epoch(1) != {}
    assert probe.of_epoch(2) == {}
