"""A small training with faults, and the checks of its results.

The testing process itself is the driver, so a training costs little more than its workers.
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
from hashing import hash_of
from pace import Paced
from resident import Resident
from support import PATIENCE
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

#: 38 samples in shards of 4, 4 shards per step: the last step of an epoch has 2 shards, and its last shard is partial.
SAMPLES, BATCH, SHARDS = 38, 4, 4
#: Exit codes of workers.
KILLED, CRASHED = -signal.SIGKILL, -signal.SIGSEGV


@dataclass(frozen=True)
class Recipe:
    """The settings of a training."""

    epochs: int = 12
    #: Loader processes of each worker.
    threads: int = 0
    #: Width of the hidden layer.
    width: int = 16
    #: Seconds per batch until the test calls `hurry`.
    pace: float = 0.03
    validation_freq: int = 2
    checkpoint_freq: int = 2
    callbacks: tuple[Callback, ...] = ()

    @property
    def batches(self) -> int:
        """The number of batches of the whole training."""
        return self.epochs * -(-SAMPLES // BATCH)


class Noisy(Dataset):
    """Samples with random augmentation from all three generators."""

    def __init__(self, size: int) -> None:
        g = torch.Generator().manual_seed(size)
        self.x, self.y = torch.randn(size, 1, 6, 6, generator=g), torch.arange(size) % 4

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> Any:
        return self.x[i] + 0.1 * torch.randn(1, 6, 6) + random.random() * np.random.rand(), self.y[i]


class Schedule(Callback):
    """A callback with its own state."""

    def __init__(self) -> None:
        self.begun: list[int] = []

    def on_epoch_begin(self, epoch: int) -> None:
        self.begun.append(epoch)
        for group in self.params["optimizer"].param_groups:
            group["lr"] = 0.02 / (1 + len(self.begun))


class Rows:
    """A driver's logger that keeps all values except the number of workers."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def log_train_metrics(self, metrics: Any, iteration: Any, epoch: Any, workers: Any) -> None:
        self.rows.append(("train", metrics, iteration, epoch))

    def log_test_metrics(self, metrics: Any, iteration: Any, epoch: Any) -> None:
        self.rows.append(("test", metrics, iteration, epoch))


@dataclass
class Result:
    """The results of a training, for comparison with another training."""

    #: Hash over parameters, buffers and optimizer.
    digest: str
    #: The values that the driver passed to its logger.
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
        """Begin with these faults in the workers (see faults.py)."""
        self.begin(ELASTIC_FAULT=",".join(faults))

    def hurry(self) -> None:
        """Let the training run at full speed from now on."""
        (self.tmp / "result" / "hurry").touch()

    def abort(self) -> None:
        """Start no more workers after a failed test, which ends the training."""
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
        """Wait until the condition holds or the training has ended."""
        self.wait(lambda: condition() or self._outcome)

    def spawned(self) -> int:
        """Return the number of workers that were started so far."""
        return sum(message["op"] == "spawn" for message in self.messages)

    def exits(self) -> dict[int, int | None]:
        """Return worker → exit code: negative for a signal, None while the worker runs."""
        return {n: worker.poll() for n, worker in self.workers.items()}

    def result(self) -> Result:
        """Return the results of the training."""
        (result,) = self._results
        result.checkpoints = {
            path.name: hash_of(torch.load(path, weights_only=True))
            for path in sorted((self.tmp / "result" / "model" / "train").iterdir())
            if path.suffix == ".pth"
        }
        return result

    def half_written(self) -> list[str]:
        """Return the files that were left unfinished."""
        return [str(path) for path in (self.tmp / "result" / "model").rglob(".*.tmp")]

    def steps(self) -> list[int]:
        """Return the committed steps, as the driver reported them."""
        return [m["step"] for m in self.messages if m["op"] == "progress" and m.get("step") is not None]

    def check(self, undisturbed: Result, casualties: dict[int, int] | None = None, begun: int = 0) -> None:
        """Check the results of the training.

        Args:
            casualties: exit codes of the workers that died.
            begun: number of workers at the beginning; all of them except the casualties must live until the end.
        """
        assert self.result() == undisturbed
        exits = self.exits()
        assert {worker: exits[worker] for worker in casualties or {}} == (casualties or {}), self._told(exits)
        survivors = set(range(1, begun + 1)) - set(casualties or {})
        assert {worker: exits[worker] for worker in survivors} == dict.fromkeys(survivors, 0), self._told(exits)
        assert self.left == []
        assert self.half_written() == []
        assert all(earlier <= later for earlier, later in itertools.pairwise(self.steps()))

    def _told(self, exits: dict[int, int | None]) -> str:
        """Return the facts that explain a failure."""
        return "\n".join([f"exit codes {exits}", *self.history()])


def processes_in(folder: Path) -> list[str]:
    """Return the command lines of processes with this working directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink() == folder and (process / "status").read_text().find("State:\tZ") < 0:
                found.append(f"{process.name}: {(process / 'cmdline').read_text()[:100]}")
        except OSError:
            continue
    return found
