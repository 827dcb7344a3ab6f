"""Real worker processes: the same bits for every number of workers, and the output of driver and workers."""

import json
import socket
from collections import Counter
from pathlib import Path

import pytest
from churn import Training
from fake_runner import FakeRunner
from scripts import lay_out, plain

from local_backend.elastic.driver.hub_server import HubServer
from local_backend.elastic.frames import receive_frame, send_frame

#: Dropout, BatchNorm, augmentation, a schedule, metrics; classes and functions of the main script; a module beside it.
SCRIPT = '''
import argparse, hashlib, json, os, random, sys
import numpy as np, torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, default_collate
from callbacks import Callback, LoggerCallback
from fabric_model import FabricModel
import beside

parser = argparse.ArgumentParser()
parser.add_argument("--optimizer")
parser.add_argument("--shards", type=int)
parser.add_argument("--threads", type=int, default=0)
args = parser.parse_args()
result = os.environ["RESULT_DIR"]
big = np.arange(20000, dtype=np.float32)


class Noisy(Dataset):
    """Random augmentation from all three generators. An item has its number if `counts`, else -1."""

    def __init__(self, size, counts):
        g = torch.Generator().manual_seed(size)
        self.x, self.y, self.counts = torch.randn(size, 1, 6, 6, generator=g), torch.arange(size) % 4, counts

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        noise = torch.randn(1, 6, 6) + random.random() + np.random.rand()
        return self.x[i] + 0.1 * noise.float() + big[0], self.y[i], i if self.counts else -1


def collate(samples):
    """Record the samples of each batch. The engine also loads single samples to compare workers."""
    with open(os.path.join(result, f"seen-{os.getpid()}"), "a") as file:
        file.writelines(f"{i}\\n" for _, _, i in samples if i >= 0)
    return default_collate([sample[:2] for sample in samples])


class Warmup(Callback):
    def on_epoch_begin(self, epoch):
        for group in self.params["optimizer"].param_groups:
            group["lr"] = 0.01 / (epoch + 1)


class Logger(LoggerCallback):
    def __init__(self):
        self.rows = []

    def log_train_metrics(self, metrics, iteration, epoch, workers):
        self.rows.append(["train", metrics, iteration, epoch])

    def log_test_metrics(self, metrics, iteration, epoch):
        self.rows.append(["test", metrics, iteration, epoch])


def datasets():
    assert "DLI_HUB_KEY" in os.environ or os.environ.get("PLAIN"), "the driver must not load data"
    return Noisy(70, True), Noisy(23, False)


def spread(outputs, labels):
    return outputs.std()


torch.manual_seed(1)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(128, 16),
    nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4),
)
optimizer = {
    "sgd": lambda: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-3),
    "adam": lambda: torch.optim.AdamW(model.parameters(), lr=0.01),
}[args.optimizer]()
logger = Logger()
fabric = FabricModel(model, datasets, beside.loss, optimizer, metrics=[spread], driver_logger=logger,
                     user_callback=[Warmup()], fn_batch_collate=collate)
fabric.train(3, 4, args.shards, num_dataloader_threads=args.threads, validation_freq=2)
state = [*model.state_dict().values()]
for per_parameter in optimizer.state_dict()["state"].values():
    state += [value for value in per_parameter.values() if value is not None]
digest = hashlib.sha256(b"".join(t.numpy().tobytes() for t in state)).hexdigest()
with open(os.path.join(result, "outcome.json"), "w") as file:
    json.dump({"digest": digest, "rows": logger.rows}, file)
print("after training, once")
'''

def outcome(tmp: Path) -> dict:
    """Return the results of SCRIPT, with the samples that were loaded for training."""
    found = json.loads((tmp / "result" / "outcome.json").read_text())
    seen = Counter()
    for path in (tmp / "result").glob("seen-*"):
        seen.update(int(line) for line in path.read_text().split())
    return {**found, "seen": seen}


@pytest.mark.integration
@pytest.mark.parametrize(("optimizer", "shards"), [("sgd", 5), pytest.param("adam", 3, marks=pytest.mark.slow)])
def test_one_two_and_three_workers_and_no_backend_give_the_same_bits(tmp_path, optimizer, shards):
    arguments = ("--optimizer", optimizer, "--shards", str(shards))
    alone = plain(tmp_path / "plain", lay_out(tmp_path / "plain", SCRIPT), *arguments)
    assert alone.returncode == 0, alone.stderr
    expected = outcome(tmp_path / "plain")
    assert expected["seen"] == Counter(dict.fromkeys(range(70), 3)), "a sample was not used exactly once per epoch"
    for workers in (1, 2, 3) if shards == 5 else (2, 3):
        folder = tmp_path / str(workers)
        threads = ("--threads", "1") if workers == 2 else ()
        ended = FakeRunner(folder, workers).run(lay_out(folder, SCRIPT), *arguments, *threads)
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.count("after training, once") == 1
        assert len(ended.worker_stderr) == workers
        found = outcome(folder)
        more = found.pop("seen") - expected["seen"]
        assert found == {name: value for name, value in expected.items() if name != "seen"}
        # In each of these epochs, every worker loads one batch that all workers compute.
        assert all(count % workers == 0 for count in more.values()) and len(more) <= 3 * 4
        assert bool(more) == (workers > 1)


def test_metrics_of_a_regression_have_no_accuracy(tmp_path):
    script = lay_out(tmp_path, (Path(__file__).parents[1] / "programs" / "regression.py").read_text())
    ended = FakeRunner(tmp_path, 2).run(script)
    assert ended.returncode == 0, ended.stderr
    metrics = ended.of("metrics")
    assert {name for message in metrics for name in message["values"]} == {"loss", "test/loss"}
    assert {message.get("accuracy") for message in ended.of("progress")} == {None}


def test_driver_and_workers_print_and_report_the_training(tmp_path):
    script = lay_out(tmp_path, SCRIPT)
    ended = FakeRunner(tmp_path, 2).run(script, "--optimizer", "sgd", "--shards", "2")
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[:4] == [
        f"<> RESULT_DIR {tmp_path / 'result'}",
        f"<> LOG_DIR {tmp_path / 'log'}",
        "Using pytorch backend.",
        "Using dlicmd scheduler.",
    ]
    last = {name: value for message in ended.of("progress") for name, value in message.items()}
    steps = 3 * 9  # 70 samples, 8 per step
    assert {key: last[key] for key in ("epoch", "epochs", "step", "steps", "workers")} == {
        "epoch": 3,
        "epochs": 3,
        "step": steps,
        "steps": steps,
        "workers": 2,
    }
    assert 0 <= last["accuracy"] <= 1
    assert last["secondsLeft"] == 0
    quiet = FakeRunner(tmp_path, 1).run(script, "--optimizer", "sgd", DLI_QUIET="1")
    assert not [line for line in quiet.stdout.splitlines() if line.startswith(("<>", "Using", "start message", "----"))]
    first = ended.worker_stderr[1]
    for words in (
        " - root - INFO - ! dataset size 70, batch size 4",
        "<=== Epoch 0 Begin ==> ",
        "<=== Epoch 2 End ==> ",
        f"save model under: {tmp_path / 'result' / 'model' / 'train'}",
        "save models for epoch 3 ",
        "epoch=1 validation_accuracy: 0.",
    ):
        assert words in first, f"missing in the worker's log: {words}"
    assert "save models" not in ended.worker_stderr[2]
    assert "--------END TRAINING: completed " in ended.worker_stdout[2]
    blocks = ended.worker_stdout[2].splitlines()
    # The second batch of every step; an epoch has 18 batches, and the last one repeats the number of the one before.
    trained = [int(line.split()[1].rstrip(":")) for line in blocks if "tag train_loss, simple_value" in line]
    assert trained == [min(2 * step + 3, 18) + 18 * epoch for epoch in range(3) for step in range(9)]
    tested = sum(text.count("tag test_loss, simple_value") for text in ended.worker_stdout.values())
    assert tested == sum(text.count("tag test_accuracy, simple_value") for text in ended.worker_stdout.values()) > 0


WHOLE = """
import argparse, os, sys
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from callbacks import Callback
from fabric_model import FabricModel

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x)

class Save(Callback):
    def on_epoch_end(self, epoch, save_model=False):
        if save_model:
            torch.save(self.model, os.path.join(os.environ["RESULT_DIR"], "whole.pt"))

def datasets():
    from needs_arguments import arguments
    folder = os.path.join(os.environ["RESULT_DIR"], "download")
    if not os.path.isdir(folder):
        os.makedirs(folder)  # fails where two do it at once
    data = TensorDataset(torch.randn(16, 4), torch.arange(16) % 3)
    return data, data

torch.set_default_dtype(torch.float64)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
model = FabricModel(net, datasets, F.cross_entropy, optimizer, user_callback=[Save()], save_to_onnx=True)
model.train(1, 4, 2)
whole = torch.load(os.path.join(os.environ["RESULT_DIR"], "whole.pt"), weights_only=False)
assert type(whole) is Net
assert torch.equal(whole.layer.weight, net.layer.weight)
"""
NEEDS_ARGUMENTS = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True)
arguments = parser.parse_args()
"""


@pytest.mark.integration
def test_workers_have_the_command_line_the_scripts_classes_and_the_data(tmp_path):
    script = lay_out(tmp_path, WHOLE)
    (script.parent / "needs_arguments.py").write_text(NEEDS_ARGUMENTS)
    ended = FakeRunner(tmp_path, 2).run(script, "--data", "here")
    assert ended.returncode == 0, ended.stderr
    assert len(ended.of("spawn")) == 2
    exported = (tmp_path / "result" / "model" / "trained_model.onnx").exists()
    warning = "WARNING: no ONNX model was written; see the log of the worker that saved last"
    assert (warning in ended.stderr) != exported


@pytest.mark.parametrize(("slots", "submitted", "engines", "expected"), [(3, 2, 4, 2), (2, 2, 1, 1)])
def test_the_workers_are_limited_by_slots_submission_and_script(tmp_path, slots, submitted, engines, expected):
    script = lay_out(tmp_path, SCRIPT)
    ended = FakeRunner(tmp_path, slots, submitted).run(script, "--optimizer", "sgd", "--shards", str(engines))
    assert ended.returncode == 0, ended.stderr
    assert len(ended.of("spawn")) == expected


def test_a_connection_without_the_key_is_refused():
    server = HubServer({"op": "welcome"}, b"payload")
    host, port = server.address.split(":")
    key = server.expect(1)
    hello = {"op": "hello", "worker": 1, "key": key}

    def answer(message):
        with socket.create_connection((host, int(port))) as stranger:
            send_frame(stranger, message)
            return receive_frame(stranger)

    try:
        assert host == "127.0.0.1"
        assert answer({**hello, "key": "00"}) is None
        assert answer({**hello, "worker": 7}) is None
        assert answer({"op": "ready", "samples": 1, "test_batches": 0}) is None
        with socket.create_connection((host, int(port))) as talker:
            talker.sendall(b"\xff" * 12 + b"x" * 100)
            assert receive_frame(talker) is None
        assert answer(hello) == ({"op": "welcome"}, b"payload")
        assert answer(hello) is None, "a key was accepted for a second connection"
    finally:
        server.close()


LEAVERS = """
import os, time
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset, default_collate
from callbacks import Callback
from fabric_model import FabricModel

result = os.environ["RESULT_DIR"]

class Lines:
    # Never flushed, never closed.
    def _write(self, text):
        if not hasattr(self, "file"):
            self.file = open(os.path.join(result, "lines-" + os.environ["DLI_WORKER_NUMBER"]), "w")
        self.file.write(text + "\\n")

    def on_train_begin(self):
        self._write("begin")

    def log_train_metrics(self, loss, acc, completed_batch, worker=0):
        self._write(str(completed_batch))

    def on_train_end(self):
        self._write("end")

class Once(Callback):
    def on_train_end(self):
        open(os.path.join(result, "ended-" + os.environ["DLI_WORKER_NUMBER"]), "w")

def collate(samples):
    if not os.path.exists(os.path.join(result, "hurry")):
        time.sleep(0.02)
    return default_collate(samples)

data = TensorDataset(torch.randn(64, 4), torch.arange(64) % 3)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
FabricModel(model, lambda: (data, data), F.cross_entropy, optimizer, worker_logger=Lines(), driver_logger=object(),
            user_callback=[Once()], fn_batch_collate=collate).train(40, 8, 2)
"""


@pytest.mark.integration
def test_a_leaving_worker_completes_its_log(tmp_path):
    training = Training(tmp_path, 2)
    (training.code / "train.py").write_text(LEAVERS)
    training.begin()
    try:
        training.wait_for_step(2)
        training.resize(1)
        training.wait(lambda: training.alive() == [1], "the leaver ends")
        ended = training.finish()
    finally:
        training.abort()
    assert ended.returncode == 0, ended.stderr
    for worker in (1, 2):
        first, *batches, last = (tmp_path / "result" / f"lines-{worker}").read_text().splitlines()
        assert (first, last) == ("begin", "end")
        assert batches == [str(n) for n in range(1, len(batches) + 1)]
        assert len(batches) >= 2
    assert [path.name for path in (tmp_path / "result").glob("ended-*")] == ["ended-1"], (
        "the leaving worker called on_train_end"
    )
    log = [line.split(" - ", 3)[-1] for line in ended.worker_stderr[1].splitlines()]
    begins = [i for i, line in enumerate(log) if line == "------cluster begin-------"]
    clusters = [log[i + 1 : log.index("------cluster end-------", i)] for i in begins]
    assert clusters == [["worker-1", "worker-2"], ["worker-1"]]
    assert [log[i - 1].rsplit(" ", 1)[0] for i in begins] == ["new communicate id"] * 2
