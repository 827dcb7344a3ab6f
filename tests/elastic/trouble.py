"""A small training that things are done to, and what has to be true of it afterwards.

The testing process itself is the driver, so that a training costs little more than its workers.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from callbacks import Callback
from fabric_model import FabricModel
from fake_runner import POLLING
from hashing import hash_of
from pace import Paced
from resident import Resident
from support import PATIENCE
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

#: Of 38 samples in shards of 4, 4 shards a step: the last step of an epoch has two, and the last of them is not full.
SAMPLES, BATCH, SHARDS = 38, 4, 4
#: Exit codes of workers.
KILLED, CRASHED = -signal.SIGKILL, -signal.SIGSEGV


@dataclass(frozen=True)
class Recipe:
    """What is trained."""

    epochs: int = 12
    #: Loader processes of each worker.
    threads: int = 0
    #: Width of the hidden layer.
    width: int = 16
    #: Seconds per batch, as long as nobody is in a hurry.
    pace: float = 0.03
    validation_freq: int = 2
    checkpoint_freq: int = 2
    callbacks: tuple[Callback, ...] = ()

    @property
    def batches(self) -> int:
        """Batches of the whole training."""
        return self.epochs * -(-SAMPLES // BATCH)


class Noisy(Dataset):
    """Augmented at random, by all three generators."""

    def __init__(self, size: int) -> None:
        g = torch.Generator().manual_seed(size)
        self.x, self.y = torch.randn(size, 1, 6, 6, generator=g), torch.arange(size) % 4

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> Any:
        return self.x[i] + 0.1 * torch.randn(1, 6, 6) + random.random() * np.random.rand(), self.y[i]


class Schedule(Callback):
    """Has a state of its own."""

    def __init__(self) -> None:
        self.begun: list[int] = []

    def on_epoch_begin(self, epoch: int) -> None:
        self.begun.append(epoch)
        for group in self.params["optimizer"].param_groups:
            group["lr"] = 0.02 / (1 + len(self.begun))


class Rows:
    """A driver's logger that keeps what it is told, but for the number of workers."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def log_train_metrics(self, metrics: Any, iteration: Any, epoch: Any, workers: Any) -> None:
        self.rows.append(("train", metrics, iteration, epoch))

    def log_test_metrics(self, metrics: Any, iteration: Any, epoch: Any) -> None:
        self.rows.append(("test", metrics, iteration, epoch))


@dataclass
class Result:
    """What a training leaves, to be compared with what another one left."""

    #: Hash over parameters, buffers and optimizer.
    digest: str
    #: What the driver's logger was told.
    rows: list[Any]
    #: File → hash of the tensors in it.
    checkpoints: dict[str, str] = field(default_factory=dict)


def train(recipe: Recipe, folder: Path) -> Result:
    """Train in this process as the driver; files go below `folder`, which is RESULT_DIR."""
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(128, recipe.width),
        nn.BatchNorm1d(recipe.width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(recipe.width, 4),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-3)
    rows = Rows()
    fabric = FabricModel(
        model, lambda: (Noisy(SAMPLES), Noisy(23)), F.cross_entropy, optimizer, driver_logger=rows,
        user_callback=[Schedule(), *recipe.callbacks],
        fn_batch_collate=Paced(str(folder / "hurry"), recipe.pace, recipe.batches // 2),
    )
    fabric.train(
        recipe.epochs, BATCH, SHARDS, recipe.threads, recipe.validation_freq, recipe.checkpoint_freq, mode="exact"
    )
    return Result(hash_of([model.state_dict(), optimizer.state_dict()]), rows.rows)


class Trouble(Resident):
    """Runs a recipe; the test acts in its own thread."""

    def __init__(self, tmp: Path, slots: int, recipe: Recipe | None = None, max_workers: int = 4) -> None:
        self.recipe = recipe or Recipe()
        self._over = False
        self._results: list[Result] = []
        super().__init__(tmp, slots, self._train_here)
        self.max_workers = max_workers

    def _train_here(self) -> None:
        folder = self.tmp / "result"
        os.environ["CHECKPOINT_DIR"] = str(folder / "checkpoint")
        try:
            self._results.append(train(self.recipe, folder))
        finally:
            del os.environ["CHECKPOINT_DIR"]
            #: Processes that the training left running.
            self.left = processes_in(self.tmp)

    def suffer(self, *faults: str) -> None:
        """Begin, with these faults in the workers (see faults.py)."""
        self.begin(ELASTIC_FAULT=",".join(faults))

    def hurry(self) -> None:
        """At full speed from now on."""
        (self.tmp / "result" / "hurry").touch()

    def abort(self) -> None:
        """For a test that has failed: no more workers, which ends the training."""
        self._over = True
        super().abort()
        if self._thread.is_alive():
            self.allocate(1)
        self._thread.join(PATIENCE)

    def _spawn(self, message: dict) -> None:
        if self._over:
            self._tell({"event": "exited", "worker": message["worker"], "pid": None, "reason": "the test is over"})
        else:
            super()._spawn(message)

    def wait_or_end(self, condition: Callable[[], object]) -> None:
        """Until the condition holds, or the training has ended."""
        self.wait(lambda: condition() or self._outcome)

    def spawned(self) -> int:
        """Workers that were started so far."""
        return sum(message["op"] == "spawn" for message in self.messages)

    def exits(self) -> dict[int, int | None]:
        """Worker → exit code, negative for a signal, of all that have ended."""
        with POLLING:
            return {n: worker.exitcode for n, worker in self.workers.items()}

    def result(self) -> Result:
        """What it left."""
        (result,) = self._results
        result.checkpoints = {
            path.name: hash_of(torch.load(path, weights_only=True))
            for path in sorted((self.tmp / "result" / "model" / "train").iterdir())
            if path.suffix == ".pth"
        }
        return result

    def half_written(self) -> list[str]:
        """Files that were left unfinished."""
        return [str(path) for path in (self.tmp / "result" / "model").rglob(".*.tmp")]

    def steps(self) -> list[int]:
        """Committed steps, as the driver said them."""
        return [m["step"] for m in self.messages if m["op"] == "progress" and m.get("step") is not None]

    def check(self, undisturbed: Result, casualties: dict[int, int] | None = None, begun: int = 0) -> None:
        """What has to be true afterwards. `casualties`: exit codes of workers that were lost; `begun`: workers in the
        beginning, of whom all others live until the end."""
        assert self.result() == undisturbed
        exits = self.exits()
        assert {worker: exits[worker] for worker in casualties or {}} == (casualties or {}), self._told(exits)
        survivors = set(range(1, begun + 1)) - set(casualties or {})
        assert {worker: exits[worker] for worker in survivors} == dict.fromkeys(survivors, 0), self._told(exits)
        assert self.left == []
        assert self.half_written() == []
        assert all(earlier <= later for earlier, later in itertools.pairwise(self.steps()))

    def _told(self, exits: dict[int, int | None]) -> str:
        """What somebody needs to know who was not there."""
        return "\n".join([f"exit codes {exits}", *self.history()])


def processes_in(folder: Path) -> list[str]:
    """Command lines of processes that have their working directory there."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink() == folder and (process / "status").read_text().find("State:\tZ") < 0:
                found.append(f"{process.name}: {(process / 'cmdline').read_text()[:100]}")
        except OSError:
            continue
    return found
