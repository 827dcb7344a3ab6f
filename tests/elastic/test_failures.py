"""The output for users after failures: exceptions, deaths, Ctrl-C, objects that cannot be sent to workers."""

import os
import re
import signal
import subprocess
import sys

import pytest
from fake_runner import FakeRunner
from scripts import alone, lay_out
from support import PATIENCE

SCRIPT = """
import os, signal, sys, threading
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset, default_collate
from callbacks import Callback
from fabric_model import FabricModel
from local_backend.elastic.driver import driver

class OwnError(Exception):
    def __init__(self, code, text):
        super().__init__(f"{text} ({code})")

def datasets():
    x = torch.randn(64, 4)
    DATASETS
    return TensorDataset(x, torch.arange(64) % 3), TensorDataset(x, torch.arange(64) % 3)

def loss(outputs, labels):
    LOSS
    return F.cross_entropy(outputs, labels)

def collate(samples):
    COLLATE
    return default_collate(samples)

class Own(Callback):
    def on_epoch_end(self, epoch, save_model=False):
        CALLBACK

class Logger:
    def log_train_metrics(self, metrics, iteration, epoch, workers):
        LOGGER

model = nn.Sequential(nn.Linear(4, 3))
BEFORE
FabricModel(model, datasets, loss, torch.optim.SGD(model.parameters(), 0.1), driver_logger=object(),
            worker_logger=Logger(), user_callback=[Own()], fn_batch_collate=collate,
            local_state=["calls"]).train(50, 8, 2, THREADS)
print("reached the end")
"""
IN_WORKER_2 = "if os.environ['DLI_WORKER_NUMBER'] == '2': "


def script(tmp, threads="0", **statements):
    """Write the script with statements at the given places. Each place has the lowercase name of its mark in SCRIPT."""
    text = SCRIPT.replace("THREADS", threads)
    for place in ("datasets", "loss", "collate", "callback", "logger", "before"):
        text = text.replace(place.upper(), statements.get(place, "pass"))
    return lay_out(tmp, text)


# --- exceptions


@pytest.mark.integration
@pytest.mark.parametrize(
    ("where", "statement", "last_line"),
    [
        ("datasets", "raise ValueError('boom')", "ValueError: boom"),
        ("loss", IN_WORKER_2 + "raise ValueError('boom')", "ValueError: boom"),
        ("loss", IN_WORKER_2 + "raise OwnError(3, 'odd')", "OwnError: odd (3)"),
        ("loss", IN_WORKER_2 + "sys.exit(0)", "SystemExit: 0"),
        ("collate", "raise KeyError('column')", "KeyError: 'column'"),
        ("callback", "raise ValueError('boom')", "ValueError: boom"),
        ("logger", "raise ValueError('boom')", "ValueError: boom"),
    ],
)
def test_an_exception_in_a_worker_is_the_scripts_exception(tmp_path, where, statement, last_line):
    ended = FakeRunner(tmp_path, 2).run(script(tmp_path, **{where: statement}))
    assert ended.returncode == 1
    assert ended.stderr.rstrip().splitlines()[-1] == last_line
    function = {"callback": "on_epoch_end", "logger": "log_train_metrics"}.get(where, where)
    assert f"in {function}" in ended.stderr, "the worker's traceback is missing"
    assert any(f"in {function}" in text for text in ended.worker_stderr.values()), (
        "the exception is missing in the worker's log"
    )
    assert "reached the end" not in ended.stdout
    assert not ended.of("spawn")[2:], "a further worker was started"
    assert "ends: " not in "".join(ended.worker_stderr.values()), "a line follows the exception"


def test_a_worker_that_joins_after_the_failure_prints_nothing(tmp_path):
    class Late(FakeRunner):
        """Starts the second worker after the training has failed."""

        def _spawn(self, message):
            if message["worker"] == 2:
                self.late = message
            else:
                super()._spawn(message)

        def on_message(self, message):
            if message["op"] == "history" and message["text"].startswith("training failed"):
                super()._spawn(self.late)

    ended = Late(tmp_path, 2).run(script(tmp_path, datasets="raise ValueError('boom')"))
    assert ended.stderr.rstrip().splitlines()[-1] == "ValueError: boom"
    assert ended.worker_stderr[2] == ""


@pytest.mark.integration
def test_an_exception_in_a_loader_process_is_the_scripts_exception(tmp_path):
    ended = FakeRunner(tmp_path, 2).run(script(tmp_path, threads="2", collate="raise ValueError('boom')"))
    assert ended.returncode == 1
    assert ended.stderr.rstrip().splitlines()[-1] == "ValueError: boom"
    assert "in collate" in ended.stderr


@pytest.mark.parametrize(("where", "place"), [
    ("datasets", "datasets"), ("loss", "loss"), ("collate", "collate"), ("callback", "on_epoch_end"),
    ("logger", "log_train_metrics"),
])
def test_an_exception_without_a_backend_is_the_scripts_exception(tmp_path, where, place):
    ended = alone(tmp_path, script(tmp_path, **{where: "raise OwnError(3, 'odd')"}))
    assert ended.returncode == 1
    assert ended.stderr.rstrip().splitlines()[-1] == "OwnError: odd (3)"
    assert ended.stderr.count("OwnError: odd (3)") == 1, "the exception was not printed exactly once"
    assert f", in {place}\n" in ended.stderr, "the traceback does not show the line of the script"


def test_an_object_that_cannot_be_pickled_is_named(tmp_path):
    ended = FakeRunner(tmp_path, 1).run(script(tmp_path, before="model.lock = threading.Lock()"))
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert "cannot send model.lock" in last
    assert "cannot pickle '_thread.lock' object" in last
    assert ended.of("spawn") == []


# --- deaths


@pytest.mark.integration
@pytest.mark.parametrize("death", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(0)"])
def test_a_worker_that_dies_without_an_exception_is_replaced(tmp_path, death):
    ended = FakeRunner(tmp_path, 2).run(script(tmp_path, loss=IN_WORKER_2 + death))
    assert ended.returncode == 0, ended.stderr
    assert "reached the end" in ended.stdout
    assert [message["worker"] for message in ended.of("spawn")][:2] == [1, 2]
    assert max(message.get("deaths", 0) for message in ended.of("progress")) == 1


@pytest.mark.integration
def test_repeated_deaths_at_the_same_step_end_the_job_with_one_clear_line(tmp_path):
    # New workers train two steps for themselves before they become members.
    third = "calls.append(1); len(calls) > 2 and os.kill(os.getpid(), signal.SIGKILL)"
    ended = FakeRunner(tmp_path, 2).run(script(tmp_path, before="calls = []", loss=third))
    assert ended.returncode == 1
    last_line = ended.stderr.splitlines()[-1]
    assert re.search(r"interrupted 3 times at step [012] ", last_line)
    assert "was killed by signal 9: SIGKILL" in last_line
    history = [message["text"] for message in ended.of("history")]
    assert any("was killed by signal 9: SIGKILL" in line for line in history)
    assert any("training failed" in line for line in history)


@pytest.mark.integration
def test_a_killed_loader_process_costs_only_its_worker(tmp_path):
    kill = IN_WORKER_2 + "torch.utils.data.get_worker_info() and os.kill(os.getpid(), signal.SIGKILL)"
    ended = FakeRunner(tmp_path, 2).run(script(tmp_path, threads="1", collate=kill))
    assert ended.returncode == 0, ended.stderr
    assert "a data loader process" in ended.worker_stderr[2]


def test_workers_end_after_the_driver_is_killed(tmp_path):
    class Murderer(FakeRunner):
        def on_message(self, message):
            if message["op"] == "progress" and "step" in message:
                self.driver.kill()

    runner = Murderer(tmp_path, 2)
    ended = runner.run(script(tmp_path, loss="import time; time.sleep(0.01)"))
    assert ended.returncode == -signal.SIGKILL
    for worker in runner.workers.values():
        worker.wait(PATIENCE)


# --- Ctrl-C

#: The driver's grace time is longer than the test's timeout, so a needless wait fails the test.
PATIENT = f"driver.GRACE = {10 * PATIENCE}"


@pytest.mark.integration
@pytest.mark.parametrize("threads", ["0", "2"])
def test_ctrl_c_ends_a_plain_script(tmp_path, threads):
    path = script(tmp_path, threads, before=PATIENT, logger="print('trained', flush=True)")
    # A new session: loader processes get the signal too, as in a terminal.
    process = subprocess.Popen(
        [sys.executable, str(path)], env=FakeRunner(tmp_path, 1).environment(), cwd=path.parent,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )
    try:
        while process.stdout.readline() != "trained\n":
            assert process.poll() is None
        os.killpg(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == -signal.SIGINT
    assert stderr.splitlines()[-1] == "KeyboardInterrupt"
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_ctrl_c_ends_a_driver_and_its_workers(tmp_path):
    class Impatient(FakeRunner):
        def on_message(self, message):
            if message["op"] == "progress" and "step" in message:
                self.driver.send_signal(signal.SIGINT)

    runner = Impatient(tmp_path, 2)
    ended = runner.run(script(tmp_path, loss="import time; time.sleep(0.01)"))
    assert ended.returncode == -signal.SIGINT
    assert ended.stderr.splitlines()[-1] == "KeyboardInterrupt"
    for worker in runner.workers.values():
        worker.wait(PATIENCE)
