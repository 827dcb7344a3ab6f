"""Modules beside the script have the same values in all workers as in the script."""

import importlib
import json
import sys

import cloudpickle
import pytest
from fake_runner import FakeRunner
from scripts import alone, lay_out

from local_backend.elastic.errors import EngineError
from local_backend.elastic.script import module_values
from local_backend.elastic.script.module_values import ModuleValues

#: Draws at import; changes constants, dicts, class attributes and a model of modules beside the script.
SCRIPT = '''
import hashlib, json, os, sys
import numpy as np, torch
from torch.nn import functional as F
from torch.utils.data import Dataset
from fabric_model import FabricModel
import config, splits
from network import model, regularized

torch.manual_seed(3)
config.SHIFT = 0.25
config.OPTIONS["scale"] = 2.0
config.Settings.power = 3
config.settings.offset = np.ones(6) / 8
config.transform = lambda x: x.clamp(-2, 2)


class Data(Dataset):
    def __init__(self, indices):
        import late
        self.indices, self.factor = indices, late.FACTOR

    def __len__(self):
        return len(self.indices)

    def __getitem__(self, i):
        x = torch.linspace(-1, 1, 6) * float(self.indices[i]) / 12
        return config.sample(x).float() * self.factor, int(self.indices[i]) % 4


def datasets():
    order = splits.rng.permutation(splits.SPLIT)
    return Data(order[:36]), Data(order[36:])


import late
late.FACTOR = 0.75
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
FabricModel(model, datasets, regularized, optimizer, driver_logger=object()).train(2, 4, 3)
state = b"".join(t.numpy().tobytes() for t in model.state_dict().values())
print(json.dumps(hashlib.sha256(state).hexdigest()))
'''
CONFIG = '''
import os, types
import torch
SHIFT = 0.0
OPTIONS = {"scale": 1.0}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
class Settings:
    power = 1
settings = types.SimpleNamespace(offset=0.0)
def transform(x):
    return x
def sample(x, options=OPTIONS):
    return transform((x + SHIFT) * options["scale"] + torch.as_tensor(settings.offset)) ** Settings.power
'''
#: A worker that imports this module draws other numbers than the script. The script and a plain run draw the same.
SPLITS = '''
import os
import numpy as np
in_worker = "DLI_HUB_KEY" in os.environ
np.random.seed(os.getpid() if in_worker else 5)
SPLIT = np.random.permutation(48)
rng = np.random.default_rng(os.getpid() if in_worker else 6)
'''
NETWORK = '''
import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(8)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
def regularized(outputs, labels):
    return F.cross_entropy(outputs, labels) + 0.1 * model[0].weight.square().sum()
'''


@pytest.mark.integration
def test_workers_see_the_scripts_values_of_modules_beside_it(tmp_path):
    printed = []
    for name, slots in (("alone", 0), ("two", 2)):
        script = lay_out(tmp_path / name, SCRIPT)
        modules = {"config": CONFIG, "splits": SPLITS, "network": NETWORK, "late": "FACTOR = 1.0\n"}
        for module, text in modules.items():
            (script.parent / f"{module}.py").write_text(text)
        folder = tmp_path / name
        ended = FakeRunner(folder, slots).run(script) if slots else alone(folder, script)
        assert ended.returncode == 0, ended.stderr
        printed.append(ended.stdout.splitlines()[-1])
    assert printed[0] == printed[1]
    assert len(json.loads(printed[0])) == 64


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """A function that imports a user module with the given text. A further call imports it anew, as a worker does."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(text):
        (tmp_path / "of_user.py").write_text(text)
        sys.modules.pop("of_user", None)
        importlib.invalidate_caches()
        return importlib.import_module("of_user")

    yield make
    sys.modules.pop("of_user", None)


def sent(shared=()):
    """Return the values of the modules as a worker gets them."""
    return cloudpickle.loads(cloudpickle.dumps(ModuleValues.gather(shared)))


def test_values_are_set_in_place_and_equal_values_stay(imported):
    text = "import threading\nOPTIONS = {'a': 1}\nNAMES = ['x']\nKEPT = [1, {'a': {2.0}}]\nlock = threading.Lock()\n"
    driver = imported(text)
    driver.OPTIONS["a"], driver.ADDED = 2, 3
    driver.NAMES.append("y")
    values = sent()
    worker = imported(text)
    options, names, kept, lock = worker.OPTIONS, worker.NAMES, worker.KEPT, worker.lock
    values.apply()
    assert worker.OPTIONS is options == {"a": 2}
    assert worker.NAMES is names == ["x", "y"]
    assert worker.ADDED == 3
    assert worker.KEPT is kept and worker.lock is lock


def test_values_of_a_process_stay_its_own(imported):
    text = (
        "import os, torch\nuse_gpu = {gpu} or torch.cuda.is_available()\nPLACE = '{place}'\n"
        "OPTIONS = dict(device='{place}', rate=1)\nLOGS = os.environ.get('LOG_DIR', '{place}')\n"
        "class C:\n    PLACE = '{place}'\n"
    )
    driver = imported(text.format(gpu=False, place="cpu"))
    driver.OPTIONS["rate"] = 2
    values = sent()
    worker = imported(text.format(gpu=True, place="cuda:0"))
    logs = worker.LOGS
    values.apply()
    assert (worker.use_gpu, worker.PLACE, worker.C.PLACE, worker.LOGS) == (True, "cuda:0", "cuda:0", logs)
    assert worker.OPTIONS == {"device": "cuda:0", "rate": 2}


def test_a_large_value_that_differs_is_refused(imported, monkeypatch):
    monkeypatch.setattr(module_values, "MOST_BYTES", 10_000)
    # Modules of other tests may be loaded too.
    monkeypatch.setattr(module_values, "user_modules", lambda: [sys.modules["of_user"]])
    text = "import numpy as np\nTABLE = np.arange(5000)\nSMALL = np.zeros(3)\n"
    driver = imported(text)
    driver.SMALL[0] = 1
    values = sent()
    assert len(cloudpickle.dumps(values)) < 20_000
    worker = imported(text)
    values.apply()
    assert worker.SMALL.tolist() == [1, 0, 0]
    driver = imported(text)
    driver.TABLE[0] = 7
    values = sent()
    imported(text)
    with pytest.raises(EngineError, match=r"of_user.TABLE differs between the script and its workers"):
        values.apply()


def test_functions_with_different_closures_are_set(imported):
    text = (
        "def make(rate):\n    def schedule(step):\n        return schedule and rate * step\n    return schedule\n"
        "TABLE = {'a': make(1), 'b': lambda x: x + 1}\n"
    )
    driver = imported(text)
    driver.TABLE["a"] = driver.make(3)
    values = sent()
    worker = imported(text)
    values.apply()
    assert (worker.TABLE["a"](2), worker.TABLE["b"](2)) == (6, 3)
    driver = imported(text)
    values = sent()
    worker = imported(text)
    kept = worker.TABLE["b"]
    values.apply()
    assert worker.TABLE["b"] is kept


def test_an_object_of_the_job_stays_the_same_object(imported):
    text = "from torch import nn\nmodel = nn.Linear(2000, 2000)\n"
    driver = imported(text)
    model, values = cloudpickle.loads(cloudpickle.dumps((driver.model, ModuleValues.gather([driver.model]))))
    worker = imported(text)
    values.apply()
    assert worker.model is model
