"""A training whose workers join, leave and die at the test's command, and the script that it trains.

The script trains slowly until the test calls `finish`, so no result depends on a race between test and training.
"""

from __future__ import annotations

import json
import os
import signal
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

from fake_runner import FakeRunner, Outcome
from support import PATIENCE

#: Dropout, BatchNorm, augmentation, momentum, a schedule, clipping; the last step is partial.
SCRIPT = """
import hashlib, json, os, random, signal, sys, time
import numpy as np, torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, default_collate
from callbacks import Callback, LoggerCallback
from fabric_model import FabricModel

result = os.environ["RESULT_DIR"]
hurry, killed = os.path.join(result, "hurry"), os.path.join(result, "killed")
options = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}


class Noisy(Dataset):
    def __init__(self, size):
        g = torch.Generator().manual_seed(size)
        self.x, self.y = torch.randn(size, 1, 6, 6, generator=g), torch.arange(size) % 4

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i] + 0.1 * torch.randn(1, 6, 6) + random.random() * np.random.rand(), self.y[i]


def collate(samples):
    if not os.path.exists(hurry):
        time.sleep(options.get("pace", 0.02))
    return default_collate(samples)


class Schedule(Callback):
    def __init__(self):
        self.best = []

    def on_epoch_begin(self, epoch):
        self.best.append(epoch)
        for group in self.params["optimizer"].param_groups:
            group["lr"] = 0.02 / (1 + len(self.best))


class Logger(LoggerCallback):
    def __init__(self):
        self.rows = open(os.path.join(result, "rows.jsonl"), "a")

    def log_train_metrics(self, metrics, iteration, epoch, workers):
        print(json.dumps(["train", metrics, iteration, epoch]), file=self.rows, flush=True)

    def log_test_metrics(self, metrics, iteration, epoch):
        if epoch == options.get("killed_while_logging") and not os.path.exists(killed):
            open(killed, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        print(json.dumps(["test", metrics, iteration, epoch]), file=self.rows, flush=True)


torch.manual_seed(1)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(128, 16),
    nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4),
)
kind = options.get("optimizer", "sgd")
optimizer = (torch.optim.AdamW(model.parameters(), lr=0.01) if kind == "adam" else
             torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-3))
fabric = FabricModel(model, lambda: (Noisy(70), Noisy(23)), F.cross_entropy, optimizer, driver_logger=Logger(),
                     user_callback=[Schedule()], fn_batch_collate=collate)
fabric.train(options.get("epochs", 12), 4, options.get("shards", 4), options.get("threads", 0),
             validation_freq=3, checkpoint_freq=5, mode=options.get("mode"))
state = [*model.state_dict().values()]
for per_parameter in optimizer.state_dict()["state"].values():
    state += [value for value in per_parameter.values() if value is not None]
digest = hashlib.sha256(b"".join(t.numpy().tobytes() for t in state)).hexdigest()
with open(os.path.join(result, "outcome.json"), "w") as file:
    json.dump(digest, file)
"""


class Training(FakeRunner):
    """Runs the script in a thread, while the test acts in its own thread and waits for conditions."""

    def __init__(self, tmp: Path, slots: int, max_workers: int = 4, **options: object) -> None:
        super().__init__(tmp, slots, max_workers)
        self.code = tmp / "code"
        self.code.mkdir(parents=True)
        (tmp / "result").mkdir()
        (tmp / "log").mkdir()
        (self.code / "train.py").write_text(textwrap.dedent(SCRIPT))
        self.options = options
        self.status: dict = {}
        #: Number of logged lines at each death of the driver.
        self._cuts: list[int] = []
        self._news = threading.Condition()
        self._outcome: list[Outcome | BaseException] = []

    def on_message(self, message: dict) -> None:
        with self._news:
            if message["op"] == "progress":
                self.status.update(message)
            self._news.notify_all()

    def _watch(self, number: int) -> None:
        super()._watch(number)
        with self._news:
            self._news.notify_all()

    def begin(self, **environment: str) -> None:
        """Start the driver, for the first time or after its death."""
        self.status.clear()
        self._outcome.clear()

        def run() -> None:
            try:
                checkpoints = str(self.tmp / "result" / "checkpoint")
                arguments = [json.dumps(self.options)]
                self._outcome.append(
                    self.run(self.code / "train.py", *arguments, CHECKPOINT_DIR=checkpoints, **environment)
                )
            except BaseException as error:
                self._outcome.append(error)
            with self._news:
                self._news.notify_all()

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def wait(self, condition: Callable[[], object], what: str = "") -> None:
        """Wait until the condition holds.

        Check it after every message of the driver and after every end of a worker.
        """
        with self._news:
            good = self._news.wait_for(lambda: condition() or self._outcome, PATIENCE)
        assert good and condition(), f"did not happen: {what}; {self._outcome}; {self.history()[-20:]}"

    def wait_for_step(self, step: int) -> None:
        """Wait until `step` steps are committed."""
        self.wait(lambda: self.status.get("step", 0) >= step, f"step {step}")

    def wait_for_workers(self, count: int) -> None:
        """Wait until the training has `count` members."""
        self.wait(lambda: self.status.get("workers") == count, f"{count} workers")

    def resize(self, slots: int) -> None:
        """Change the allocation and wait until training runs on it."""
        self.allocate(slots)
        self.wait_for_workers(slots)

    def kill(self, worker: int, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to a worker."""
        os.kill(self.workers[worker].pid, number)

    def alive(self) -> list[int]:
        """Return the workers whose processes live."""
        return [number for number, worker in list(self.workers.items()) if worker.poll() is None]

    def history(self) -> list[str]:
        """Return the lines that the driver wrote into the job's history."""
        return [message["text"] for message in self.messages if message["op"] == "history"]

    def kill_driver(self) -> Outcome:
        """Kill the driver and wait until the driver and its workers have ended."""
        self.driver.kill()
        outcome = self._join()
        self._cuts.append(len(self._logged()))
        return outcome

    def finish(self) -> Outcome:
        """Let the training run to its end at full speed."""
        (self.tmp / "result" / "hurry").touch()
        return self._join()

    def _join(self) -> Outcome:
        self._thread.join(self.patience)
        assert self._outcome, f"the training did not end: {self.history()[-20:]}"
        (outcome,) = self._outcome
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def abort(self) -> None:
        """Kill all workers after a failed test."""
        for worker in list(self.workers.values()):
            worker.kill()

    @property
    def digest(self) -> str:
        """The hash over parameters, buffers and optimizer state at the end."""
        return json.loads((self.tmp / "result" / "outcome.json").read_text())

    @property
    def rows(self) -> list:
        """The values that the drivers passed to their loggers. A driver logs the step or the validation again that a
        killed driver was logging. These lines count once."""
        rows = self._logged()
        for cut in reversed(self._cuts):
            again = next((n for n in range(cut, 0, -1) if rows[cut - n:cut] == rows[cut:cut + n]), 0)
            assert again <= self.options.get("shards", 4), "more than one step is logged again"
            del rows[cut:cut + again]
        return rows

    def _logged(self) -> list:
        """Return the lines of all drivers. A script without a logger of its own writes none."""
        rows = self.tmp / "result" / "rows.jsonl"
        return [json.loads(line) for line in rows.read_text().splitlines()] if rows.exists() else []
