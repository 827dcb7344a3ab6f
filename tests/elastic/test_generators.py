"""Random generators of user code: the engine finds them in all places and seeds them for each sample and each batch."""

import functools
import json
import random

import numpy as np
import pytest
import torch
from fake_runner import FakeRunner
from scripts import alone, lay_out
from torch import nn

from local_backend.elastic.data.seeding import SeededLoading, own_generators, seed_everything, watch
from local_backend.elastic.errors import EngineError
from local_backend.elastic.script.generators import find, restore

KINDS = {
    "generator": lambda: np.random.default_rng(1),
    "philox": lambda: np.random.Generator(np.random.Philox(1)),
    "random state": lambda: np.random.RandomState(1),
    "random": lambda: random.Random(1),
    "torch": lambda: torch.Generator().manual_seed(1),
}
GLOBAL = np.random.default_rng(3)


class Holder:
    def __init__(self, item):
        self.item = item


class Drawing(Holder):
    def draw(self):
        return self.item.random()


class Slotted:
    __slots__ = ("item",)

    def __init__(self, item):
        self.item = item


class OfClass:
    rng = random.Random(4)

    def draw(self):
        return GLOBAL.random() + self.rng.random()


def default(rng=random.Random(5)):
    return rng.random()


def closed_over(rng):
    def draw():
        return [rng.random() for _ in range(2)]

    return draw


class Module(nn.Module):
    def __init__(self, rng):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 2), nn.Identity())
        self.inner[1].rng = rng


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_generator_can_be_seeded_and_restored(kind):
    one, other = KINDS[kind](), KINDS[kind]()
    first, second = find({"one": [one]}), find({"other": Holder(other)})
    first.draw()
    drawn = []
    for found in (first, second):
        found.seed(7)
        drawn.append([found.draw(), found.draw()])
    assert drawn[0] == drawn[1]
    first.seed(8)
    assert first.draw() != drawn[0][0]
    states = first.states()
    drawn = first.draw()
    restore(states)
    assert first.draw() == drawn


WRAPPED = {
    "a list in a dict": lambda rng: {"a": [1, (rng,)]},
    "an attribute": Holder,
    "a slot": Slotted,
    "a closure": closed_over,
    "a partial": lambda rng: functools.partial(default, rng=rng),
    "a bound method": lambda rng: Drawing(rng).draw,
    "a module": Module,
}


@pytest.mark.parametrize("where", WRAPPED)
def test_a_generator_is_found_in_every_kind_of_holder(where):
    rng = np.random.default_rng(2)
    found = find({"root": WRAPPED[where](rng)})
    expected = rng.bit_generator.state
    found.seed(5)
    assert rng.bit_generator.state != expected


def test_generators_of_classes_globals_and_defaults_are_found_once():
    assert len(find({"first": [OfClass(), OfClass().draw, default], "again": default})) == 3


def test_global_generators_and_generators_of_libraries_are_ignored():
    import torch.utils.data as library

    roots = [random.random, np.random.rand, torch.default_generator, np.random.mtrand._rand, library, random]
    assert len(find({"roots": roots})) == 0


def test_an_object_that_refers_to_itself_is_visited_once():
    ring = Holder(None)
    ring.item = [ring, np.random.RandomState(0)]
    assert len(find({"ring": ring})) == 1


def test_a_system_random_is_refused():
    with pytest.raises(EngineError, match=r"the training set uses a random.SystemRandom"):
        find({"the training set": Holder(random.SystemRandom())})


@pytest.mark.parametrize("lazy", [False, True], ids=["made before", "made with the first sample"])
@pytest.mark.parametrize("kind", KINDS)
def test_samples_from_an_own_generator_do_not_depend_on_their_batch(kind, lazy):
    class Data:
        rng = None if lazy else KINDS[kind]()

        def __getitem__(self, key):
            self.rng = self.rng or KINDS[kind]()
            return find({"": self.rng}).draw() if key % 3 == 2 else [0]

    def load(batches):
        data = Data()
        with own_generators({}):
            watch({"data": data}, {})
            loading = SeededLoading(lambda key: data[key], list)
            return [sample for keys in batches for sample in loading.load(keys, lambda key: key + 10)]

    assert load([[0, 1], [2, 3], [4, 5]]) == load([[0], [1, 2, 3], [4, 5]]) == load([[0, 1, 2, 3, 4, 5]])


def test_a_generator_without_a_seed_is_seeded_from_the_global_generator():
    drawn = []
    with own_generators({}):
        for _ in range(2):
            seed_everything(3)
            drawn.append((np.random.default_rng().random(), np.random.RandomState().rand()))
    assert drawn[0] == drawn[1]
    assert np.random.default_rng().random() != np.random.default_rng().random()


#: All kinds of generators: in data set, test set, collate function, model, optimizer hook and callback.
SCRIPT = '''
import hashlib, json, random, sys
import numpy as np, torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, default_collate
from callbacks import Callback
from fabric_model import FabricModel
import beside_data

torch.manual_seed(3)
rng = np.random.default_rng(1)
of_collate = random.Random(2)


class Data(Dataset):
    def __init__(self, size):
        self.x = torch.linspace(-1, 1, size * 6).reshape(size, 6)
        self.order = rng.permutation(size)
        self.rng = np.random.RandomState()
        self.lazy = None

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        self.lazy = self.lazy or np.random.default_rng()
        noise = self.rng.rand() + self.lazy.random() + beside_data.noise() + np.random.default_rng().random()
        return self.x[self.order[i]] + float(noise), i % 4


def collate(samples):
    x, y = default_collate(samples)
    return x * of_collate.uniform(0.9, 1.1), y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
        self.generator = torch.Generator()

    def forward(self, x):
        return self.layers(x.float() + 0.1 * torch.randn(x.shape, generator=self.generator))


class Jitter(Callback):
    def __init__(self):
        self.rng = np.random.default_rng()

    def on_epoch_begin(self, epoch):
        self.params["optimizer"].param_groups[0]["lr"] = 0.1 + 0.01 * self.rng.random()


def datasets():
    return Data(36), Data(12)


def noisy(optimizer, args, kwargs):
    for parameter in model.parameters():
        parameter.grad += 0.01 * torch.randn(parameter.shape) + 0.01 * rng.random()


rows = []


class Logger:
    def log_test_metrics(self, metrics, iteration, epoch):
        rows.append(metrics)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
optimizer.register_step_pre_hook(noisy)
fabric = FabricModel(model, datasets, F.cross_entropy, optimizer, driver_logger=Logger(), fn_batch_collate=collate,
                     user_callback=[Jitter()])
digests = []
for _ in range(2):
    fabric.train(2, 4, 3, int(sys.argv[1]))
    digests.append(hashlib.sha256(b"".join(t.numpy().tobytes() for t in model.state_dict().values())).hexdigest())
print(json.dumps([digests, rows]))
'''
BESIDE = '''
import numpy as np
_rng = np.random.default_rng()
def noise():
    return _rng.normal()
'''


@pytest.mark.integration
def test_own_generators_give_the_same_alone_and_with_a_killed_worker(tmp_path):
    printed = []
    for name, slots in (("alone", 0), ("two", 2)):
        folder = tmp_path / name
        script = lay_out(folder, SCRIPT)
        (script.parent / "beside_data.py").write_text(BESIDE)
        fault = {"ELASTIC_FAULT": "before-reduce:2:3:kill"}
        ended = FakeRunner(folder, slots).run(script, "1", **fault) if slots else alone(folder, script, "0")
        assert ended.returncode == 0, ended.stderr
        if slots:
            assert len(ended.of("spawn")) == 5, (
                "expected 2 workers and 1 replacement, then 2 workers in the second training"
            )
        printed.append(json.loads(ended.stdout.splitlines()[-1]))
    assert printed[0] == printed[1]
    assert len(printed[0][1]) == 4
