"""The state of the script's process before train() is the same in all workers, and alone."""

import json
import os
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from fake_runner import FakeRunner
from scripts import alone, lay_out
from support import PATIENCE
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.flop_counter import FlopCounterMode

from local_backend.elastic.driver.record import TrainingRecord
from local_backend.elastic.errors import EngineError
from local_backend.elastic.hub.hub import Course
from local_backend.elastic.script import captured, initial_environment
from local_backend.elastic.script.job import TrainingJob
from local_backend.elastic.script.surroundings import reproducible

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
    """Return the output of the script and the set of the workers' records in datasets_function."""
    assert ended.returncode == 0, ended.stderr
    seen = {path.read_text() for path in (tmp / "result").glob("seen-*.json")}
    return json.loads(ended.stdout.splitlines()[-1]), seen


@pytest.mark.integration
@pytest.mark.parametrize("arguments", [(), ("seed-all",)], ids=["torch seeded", "all seeded"])
def test_the_scripts_setup_is_the_same_alone_and_on_three_workers(tmp_path, arguments):
    script = lay_out(tmp_path / "alone", SCRIPT)
    expected, seen = results(tmp_path / "alone", alone(tmp_path / "alone", script, *arguments, UNWANTED="x"))
    assert len(seen) == 1
    assert json.loads(*seen)[2] == ["medium", False, "ignore", 1234, "torch.float64", 2]
    assert expected[0][0] != expected[0][1]
    ended = FakeRunner(tmp_path / "three", 3).run(lay_out(tmp_path / "three", SCRIPT), *arguments, UNWANTED="x")
    assert results(tmp_path / "three", ended) == (expected, seen)


def test_variables_of_the_process_itself_are_not_sent_to_workers(monkeypatch):
    monkeypatch.setattr(initial_environment, "_given", {"KEPT": "1", "GONE": "2", "CHANGED": "3", "LOG_DIR": "/log/0"})
    for name in list(os.environ):
        monkeypatch.delenv(name)
    mine = {"LOG_DIR": "/log/1", "DLI_RUNNER_FD": "7", "CUDA_VISIBLE_DEVICES": "", "MSD_POD_NAME": "a", "TASK_ID": "0"}
    for name, value in {**mine, "KEPT": "1", "CHANGED": "4", "NEW": "ü\udcff"}.items():
        monkeypatch.setenv(name, value)
    changed = json.loads(json.dumps(captured.environment()))
    assert changed == {"CHANGED": "4", "GONE": None, "NEW": "ü\udcff"}
    monkeypatch.setenv("GONE", "2")
    captured.apply_environment(changed)
    assert os.environ["NEW"] == "ü\udcff" and "GONE" not in os.environ


def test_variables_set_on_a_command_line_count_as_set_by_the_script(monkeypatch):
    told = initial_environment.told({"KEPT": "1", "CHANGED": "2", "GONE": "3"})
    for name in list(os.environ):
        monkeypatch.delenv(name)
    for name, value in {"KEPT": "1", "CHANGED": "5", "RATE": "0.1", "PWD": "/", initial_environment.TOLD: told}.items():
        monkeypatch.setenv(name, value)
    assert captured.environment() == {"CHANGED": "5", "GONE": None, "RATE": "0.1"}


def test_the_initial_environment_excludes_changes_by_the_program(tmp_path):
    script = tmp_path / "main.py"
    script.write_text(
        "import os\nos.environ['ADDED'] = '1'\ndel os.environ['BEFORE']\n"
        "from local_backend.elastic.script.initial_environment import initial\n"
        "print('ADDED' in initial(), initial()['BEFORE'])\n"
    )
    environment = {**os.environ, "BEFORE": "a=b"}
    ended = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert ended.stdout == "False a=b\n"


def test_settings_survive_json_and_are_applied_and_restored():
    before = captured.settings()
    assert json.loads(json.dumps(before)) == before
    changed = {**before, "cudnn.deterministic": not before["cudnn.deterministic"], "recursion_limit": 4321}
    try:
        captured.apply_settings({**changed, "of another version": 1})
        assert captured.settings() == changed
    finally:
        captured.apply_settings(before)
    assert captured.settings() == before


def test_autocast_for_a_gpu_counts_in_a_driver_without_a_gpu(monkeypatch):
    for name in ("__init__", "__enter__", "__exit__"):
        monkeypatch.setattr(torch.autocast, name, getattr(torch.autocast, name))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    captured.watch_autocast()
    with pytest.warns(UserWarning, match="CUDA is not available"), torch.autocast("cuda", torch.bfloat16):
        assert captured.autocast() == {"cuda": "bfloat16"}
        with torch.autocast("cuda", enabled=False), torch.autocast("cpu", torch.float16):
            assert captured.autocast() == {"cpu": "float16"}
    assert captured.autocast() == {}


def test_gradients_are_computed_in_no_grad_and_weight_casts_are_not_cached():
    layer = torch.nn.Linear(2, 2)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), captured.around_training(captured.autocast()):
        for _ in range(2):
            loss = layer(torch.ones(1, 2)).sum()
            assert loss.dtype == torch.bfloat16
            loss.backward()
        layer.weight.data.fill_(0.0)
        layer.bias.data.fill_(0.0)
        assert layer(torch.ones(1, 2)).abs().sum() == 0
    assert captured.autocast() == {}


def test_generators_continue_from_the_state_of_the_script():
    with reproducible(1):
        torch.manual_seed(1)
        np.random.seed(2)
        np.random.randn()
        text = captured.generators()
        expected = torch.rand(1).item(), np.random.randn(), np.random.randn()
        captured.set_generators(text)
        assert (torch.rand(1).item(), np.random.randn(), np.random.randn()) == expected


def test_an_unseeded_generator_is_seeded_from_the_seed_of_torch():
    def drawn(seed):
        torch.manual_seed(seed)
        captured.set_generators(captured.generators())
        return np.random.rand(), random.random()

    with reproducible(1):
        first = drawn(1)
    with reproducible(1):
        np.random.mtrand.set_bit_generator(np.random.MT19937())
        assert drawn(1) == first != drawn(2)


SEEDING = """
import random, sys
{early}
import torch
from fabric_model import FabricModel
from local_backend.elastic.script import early_seeding
from local_backend.elastic.script.surroundings import thread_count
def unused():
    random.seed(1)
print(early_seeding.seeded())
{late}
assert thread_count() == 1
torch.set_num_threads(torch.get_num_threads())
print(early_seeding.seeded(), thread_count() == torch.get_num_threads())
"""


@pytest.mark.integration
@pytest.mark.parametrize(("early", "late", "expected"), [
    ("random.seed(1)", "", "True True True"), ("", "random.seed(1)", "False True True"),
    ("random.random()", "", "False False True"),
])
def test_seeding_and_thread_counts_of_the_script_are_detected(tmp_path, early, late, expected):
    (tmp_path / "main.py").write_text(SEEDING.format(early=early, late=late))
    ended = subprocess.run(
        [sys.executable, str(tmp_path / "main.py")], capture_output=True, text=True, timeout=PATIENCE, check=True,
        env={**{k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}, "FABRIC_BACKEND": "pytorch"},
    )
    assert " ".join(ended.stdout.splitlines()[-2:]) == expected


def test_the_next_driver_of_a_job_uses_the_generators_of_the_first(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CHECKPOINT_DIR", str(tmp_path))
    model = torch.nn.Linear(2, 2)
    job = TrainingJob(model, list, None, torch.optim.SGD(model.parameters(), 0.1), 1, 4)
    records = []
    for seed, version in ((1, "1.0"), (2, "2.0")):
        monkeypatch.setattr(np, "__version__", version)
        monkeypatch.setattr("local_backend.elastic.driver.record._trainings", 0)
        course = Course(
            workers=1, epochs=1, batch=4, step_samples=4, seed=seed, validation_freq=1, checkpoint_freq=1, test_chunk=1,
            limits=(),
        )
        torch.manual_seed(seed)
        records.append(TrainingRecord.open(course, "exact", job))
    first, second = records
    assert first.generators == second.generators and second.course.seed == 1
    warnings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("WARNING")]
    assert len(warnings) == 1 and "1.0" in warnings[0] and "2.0" in warnings[0]


def watch(*_):
    return None


@pytest.mark.parametrize("register", [register_module_forward_hook, register_optimizer_step_post_hook])
def test_a_hook_of_every_module_or_optimizer_is_refused(register):
    captured.check_global_hooks()
    handle = register(watch)
    try:
        with pytest.raises(EngineError, match="watch is a hook of every"):
            captured.check_global_hooks()
    finally:
        handle.remove()
    captured.check_global_hooks()


def test_a_mode_around_train_is_refused_and_a_default_device_is_not():
    with torch.device("cpu"):
        captured.check_global_hooks()
    with FlopCounterMode(display=False), pytest.raises(EngineError, match="FlopCounterMode"):
        captured.check_global_hooks()
