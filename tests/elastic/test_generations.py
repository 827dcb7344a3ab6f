"""Scripts of all four generations of the API, unchanged: imports, arguments, loggers, callbacks, printed lines."""

import json
import re

import pytest
from fake_runner import FakeRunner
from scripts import lay_out

from local_backend.elastic.api import bundle

pytestmark = pytest.mark.integration

#: The part that all generations share.
NETWORK = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

torch.manual_seed(1)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def getDatasets():
    x = torch.randn(22, 4, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, torch.arange(22) % 3), TensorDataset(x[:9], torch.arange(9) % 3)
"""

FIRST = """
import argparse, os, sys
NETWORK
fabric_zip = os.path.join(os.environ["FABRIC_HOME"], "libs", "fabric.zip")
sys.path.insert(0, fabric_zip)
print("> fabric loaded from %s" % fabric_zip)
from fabric_model import FabricModel
from edtcallback import EDTLoggerCallback

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--numWorker", type=int, default=16)
args, unknown = parser.parse_known_args()
edt_m = FabricModel(model, getDatasets, F.cross_entropy, optimizer, driver_logger=EDTLoggerCallback())
edt_m.train(2, args.batch_size, args.numWorker)
"""

SECOND = """
import argparse
NETWORK
from fabric_model import FabricModel
from callbacks import Callback
from edtcallback import EDTLoggerCallback

class LRScheduleCallback(Callback):
    def __init__(self):
        super(LRScheduleCallback, self).__init__()

    def on_epoch_begin(self, epoch):
        for group in self.params["optimizer"].param_groups:
            group["lr"] *= 0.5

def train_step(model, data, eva, train_loader, fn_args):
    inputs, labels = data
    optimizer = model.get_optimizer()
    optimizer.zero_grad()
    outputs = model(inputs)
    loss = model.get_loss_function()(outputs, labels)
    loss.backward()
    return eva(outputs, labels), loss

def test(model, test_iter, fn_args):
    total = 0.0
    for inputs, labels in test_iter:
        total += model.get_loss_function()(model(inputs), labels).item()
    return total / len(test_iter)

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
args = parser.parse_args()
edt_m = FabricModel(model, getDatasets, F.cross_entropy, optimizer, enable_onnx=False, fn_step_train=train_step,
                    fn_test=test, user_callback=[LRScheduleCallback()], driver_logger=EDTLoggerCallback())
edt_m.train(2, args.batch_size, 16, num_dataloader_threads=1, validation_freq=1, checkpoint_freq=0)
"""

THIRD = """
NETWORK
from fabric_model import FabricModel
from callbacks import LoggerCallback
from elog import ELog

class Logger(LoggerCallback):
    def __init__(self):
        self.gs = 0

    def log_train_metrics(self, metrics, completed_batch, epoch, worker=0):
        self.gs += 1
        with ELog.open() as log:
            log.recordTrain("Train", completed_batch, self.gs, metrics["loss"], metrics["accuracy"], worker)

    def log_test_metrics(self, metrics, completed_batch, epoch):
        with ELog.open() as log:
            log.recordTest("Test", metrics["loss"], metrics["accuracy"], 0)

edt_m = FabricModel(model, getDatasets, F.cross_entropy, optimizer, metrics=None, worker_logger_callback=None,
                    driver_logger_callback=Logger(), save_to_onnx=False)
edt_m.train(2, 4, 16, effective_batch_size=None)
"""

FOURTH = """
import pyedt
NETWORK
from pyedt.fabric_model import FabricModel
from elog import ELog

class Logger:
    def on_train_begin(self):
        self.gs = 0

    def log_train_metrics(self, metrics, iteration, epoch, workers):
        self.gs += 1
        with ELog.open() as log:
            log.recordTrain("Train", iteration, self.gs, metrics["loss"], metrics["accuracy"], workers)

    def log_test_metrics(self, metrics, iteration, epoch):
        with ELog.open() as log:
            log.recordTest("Test", metrics["loss"], metrics["accuracy"], 0)

edt_m = FabricModel(model, getDatasets, F.cross_entropy, optimizer, driver_logger_callback=Logger())
edt_m.train(2, 4, effective_batch_size=12, worker_memory="16G", driver_memory="1G")
"""

EDTCALLBACK = """
import json, os
from callbacks import LoggerCallback
from emetrics import EMetrics
from elog import ELog

class EDTLoggerCallback(LoggerCallback):
    def __init__(self):
        self.gs = 0
        self.steps = []

    def log_train_metrics(self, loss, acc, completed_batch, worker=0):
        self.gs += 1
        with EMetrics.open() as em:
            em.record(EMetrics.TEST_GROUP, completed_batch, {"loss": loss, "accuracy": acc})
        with ELog.open() as log:
            log.recordTrain("Train", completed_batch, self.gs, loss, acc, worker)
        self.steps.append({"steps": self.gs, "loss": loss})

    def log_test_metrics(self, loss, acc, completed_batch, worker=0):
        with ELog.open() as log:
            log.recordTest("Test", loss, acc, worker)

    def on_train_end(self):
        with open(os.path.join(os.environ["RESULT_DIR"], "val_dict_list.json"), "x") as file:
            json.dump(self.steps, file)
"""

ELOG = """
import os, time

class ELog(object):
    def __init__(self, subId, f):
        self._file = open(f, "a")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()

    @staticmethod
    def open(subId=None):
        return ELog(subId, os.path.join(os.environ["LOG_DIR"], "stdout"))

    def recordText(self, text):
        self._file.write("[{}] {}\\n".format(time.strftime("%Y-%m-%d %H:%M:%S"), text))

    def recordTrain(self, title, iteration, global_steps, loss, accuracy, worker):
        text = "{},\\tTimestamp: {},\\tGlobal steps: {},\\tIteration: {},\\tLoss: {:.5f},\\tAccuracy: {:.5f}"
        self.recordText(text.format(title, int(round(time.time() * 1000)), global_steps, iteration, loss, accuracy))

    def recordTest(self, title, loss, accuracy, worker):
        self.recordText("{},\\tTimestamp: {},\\tLoss: {:.5f},\\tAccuracy: {:.5f}".format(
            title, int(round(time.time() * 1000)), loss, accuracy))
"""

OLD_ITERATIONS, NEW_ITERATIONS = [2, 3, 4, 5, 6, 0] * 2, list(range(1, 13))


@pytest.mark.parametrize(
    ("script", "iterations"),
    [(FIRST, OLD_ITERATIONS), (SECOND, OLD_ITERATIONS), (THIRD, NEW_ITERATIONS), (FOURTH, NEW_ITERATIONS)],
    ids=["first", "second", "third", "fourth"],
)
def test_a_script_of_each_generation_trains_and_logs(tmp_path, script, iterations):
    path = lay_out(tmp_path, script.replace("NETWORK", NETWORK))
    (path.parent / "elog.py").write_text(ELOG)
    (path.parent / "edtcallback.py").write_text(EDTCALLBACK)
    bundle.build(tmp_path / "fabric")
    arguments = ["--weightSyncInterval", "5", "--isESE", "true"] if script is FIRST else []
    ended = FakeRunner(tmp_path, 2, 3).run(path, *arguments, FABRIC_HOME=str(tmp_path / "fabric"))
    assert ended.returncode == 0, ended.stderr

    out = ended.stdout.splitlines()
    shown = [line for line in out if not line.startswith("> fabric loaded from ")]
    patterns = [
        f"<> RESULT_DIR {tmp_path}/result", f"<> LOG_DIR {tmp_path}/log", "Using pytorch backend[.]",
        "Using dlicmd scheduler[.]", r"start message server 127[.]0[.]0[.]1:\d+", "--------START TRAINING--------",
        r"--------END TRAINING: completed epoch 2 in time \d+[.]\d+ --------",
    ]
    assert len(shown) == len(patterns), "a job with its own logger printed other lines"
    assert all(re.fullmatch(pattern, line) for pattern, line in zip(patterns, shown, strict=True)), shown

    lines = (tmp_path / "log" / "stdout").read_text().splitlines()
    stamp = r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] "
    train = [re.fullmatch(
        stamp + r"Train,\tTimestamp: \d{13},\tGlobal steps: (\d+),\tIteration: (\d+),\tLoss: (\d+[.]\d{5}),"
        r"\tAccuracy: ([01][.]\d{5})", line) for line in lines if "] Train," in line]
    assert [int(match[1]) for match in train] == list(range(1, 13))
    assert [int(match[2]) for match in train] == iterations
    tests = [line for line in lines if "] Train," not in line]
    assert len(tests) == 2
    assert all(re.fullmatch(
        stamp + r"Test,\tTimestamp: \d{13},\tLoss: \d+[.]\d{5},\tAccuracy: [01][.]\d{5}", line) for line in tests)

    if script in (FIRST, SECOND):
        records = [json.loads(line) for line in (tmp_path / "log" / "evaluation-metrics.txt").read_text().splitlines()]
        assert [record["etimes"]["iteration"]["value"] for record in records] == [str(n) for n in iterations]
        kept = json.loads((tmp_path / "result" / "val_dict_list.json").read_text())
        assert [row["steps"] for row in kept] == list(range(1, 13))
