"""What the script has done in its process before train() is the same in all workers, and alone."""

import json

import pytest
from fake_runner import FakeRunner
from scripts import alone, lay_out

#: Random numbers of all generators, sets of texts, environment, settings, autocast without gradients; two trainings.
SCRIPT = '''
import hashlib, json, os, random, sys
import numpy as np, torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, Subset, TensorDataset, random_split
from fabric_model import FabricModel

result = os.environ["RESULT_DIR"]
os.environ["SCALE"] = "0.5"
os.environ.pop("UNWANTED", None)
torch.manual_seed(3)
if "seed-all" in sys.argv:
    random.seed(4)
    np.random.seed(5)
torch.set_default_dtype(torch.float64)
torch.set_float32_matmul_precision("medium")
torch.backends.mkldnn.enabled = False
np.seterr(all="ignore")
sys.setrecursionlimit(1234)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, x):
        y = self.layers(x) * float(os.environ["SCALE"])
        assert torch.is_autocast_enabled("cpu") and "UNWANTED" not in os.environ
        return y.float()


def surroundings():
    return [
        torch.get_float32_matmul_precision(), torch.backends.mkldnn.enabled, np.geterr()["over"],
        sys.getrecursionlimit(), str(torch.get_default_dtype()), torch.get_num_threads(),
    ]


def datasets():
    classes = {name: i for i, name in enumerate({f"class-{i}" for i in range(4)})}
    x = torch.randn(48, 6) + np.random.rand() + random.random()
    y = torch.tensor([classes[f"class-{i % 4}"] for i in range(48)])
    order = np.random.permutation(48)
    train, test = random_split(Subset(TensorDataset(x, y), order), [36, 12])
    with open(os.path.join(result, f"seen-{os.getpid()}.json"), "w") as file:
        json.dump([hashlib.sha256(x.numpy().tobytes()).hexdigest(), train.indices, surroundings()], file)
    return train, test


model = Net()
torch.set_num_threads(2)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
fabric = FabricModel(model, datasets, F.cross_entropy, optimizer, driver_logger=object())
digests = []
for _ in range(2):
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        fabric.train(2, 4, 3)
    digests.append(hashlib.sha256(b"".join(t.numpy().tobytes() for t in model.state_dict().values())).hexdigest())
print(json.dumps([digests, [random.random(), np.random.rand()] if "seed-all" in sys.argv else []]))
'''


def results(tmp, ended):
    """(what the script printed, what each worker saw in datasets_function)."""
    assert ended.returncode == 0, ended.stderr
    seen = {path.read_text() for path in (tmp / "result").glob("seen-*.json")}
    return json.loads(ended.stdout.splitlines()[-1]), seen


@pytest.mark.parametrize("arguments", [(), ("seed-all",)], ids=["torch seeded", "all seeded"])
def test_what_the_script_has_set_up_is_the_same_alone_and_on_three_workers(tmp_path, arguments):
    script = lay_out(tmp_path / "alone", SCRIPT)
    expected, seen = results(tmp_path / "alone", alone(tmp_path / "alone", script, *arguments, UNWANTED="x"))
    assert len(seen) == 1
    assert expected[0][0] != expected[0][1]
    ended = FakeRunner(tmp_path / "three", 3).run(lay_out(tmp_path / "three", SCRIPT), *arguments, UNWANTED="x")
    assert results(tmp_path / "three", ended) == (expected, seen)
