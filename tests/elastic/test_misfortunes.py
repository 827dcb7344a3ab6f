"""Faults of a training other than deaths at one point: hangs, full disks, exceptions, lost loader processes."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from callbacks import Callback
from trouble import KILLED, Recipe, Trouble

from local_backend.elastic.faults import InjectedError

pytestmark = pytest.mark.integration


class Confined(Callback):
    """Limits files of the worker to 100 kB, which gives the same errors as a full disk."""

    def __init__(self, until: int | None = None) -> None:
        """Remove the limit at the end of the epoch `until`, or never."""
        self._until = until

    def on_train_begin(self) -> None:
        self._limit(100_000)

    def on_epoch_end(self, epoch: int) -> None:
        if epoch == self._until:
            self._limit(resource.RLIM_INFINITY)

    def _limit(self, size: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


class Exhausted(Callback):
    """Raises MemoryError."""

    def on_epoch_end(self, epoch: int) -> None:
        if epoch == 2:
            raise MemoryError("no memory")


@pytest.mark.parametrize(("point", "worker"), [
    ("before-reduce", 1), pytest.param("mid-apply", 2, marks=pytest.mark.slow),
])
def test_a_stopped_worker_is_detected_and_replaced(trouble, unharmed, point, worker):
    """On a busy machine, other workers may also look stopped, but not three times at one step."""
    training = trouble(2, hang_seconds="3")
    training.suffer(f"{point}:{worker}:22:stop")
    training.wait(lambda: training.exits().get(worker) == KILLED, "the stopped one is killed")
    training.finish()
    assert training.result() == unharmed(training.recipe)
    assert training.left == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", ["forming:3:*", "entering:3:*", "receiving:3:*", "mid-apply:3:*", "state-copy:1:*", "boundary:2:23",
              "validating:2:23", "checkpoint-rename:1:23", "callbacks:2:23", "leaving:2:*", "keeping:*:*"],
)
def test_a_stopped_worker_is_detected_at_every_point(trouble, unharmed, fault):
    """Where user code may take forever, or no worker waits, suspicion of a stopped process takes about 40 s."""
    training = trouble(2, hang_seconds="1")
    training.suffer(f"{fault}:stop")
    training.wait_for_step(20)
    if fault.startswith("leaving"):
        training.allocate(1)
    elif fault.startswith("keeping"):
        training.allocate(0)
    else:
        training.allocate(3)
    training.wait(lambda: KILLED in training.exits().values(), "the stopped one is killed")
    training.allocate(3)
    training.finish()
    assert training.result() == unharmed(training.recipe)
    assert training.left == []


class Merciful(Trouble):
    """Ignores orders to kill a worker; the test kills it later."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        self.condemned: list[int] = []

    def _obey(self, message: dict) -> None:
        if message["op"] == "kill":
            self.condemned.append(message["worker"])
        else:
            super()._obey(message)


@pytest.mark.slow
def test_a_stopped_worker_that_resumes_after_its_removal_does_no_harm(trouble, unharmed):
    training = trouble(2, kind=Merciful, hang_seconds="3")
    training.suffer("after-reduce:1:22:stop")
    training.wait(lambda: 1 in training.condemned, "the stopped one is given up")
    training.wait_for_step(25)
    training.kill(1, signal.SIGCONT)
    training.wait(lambda: training.exits().get(1) is not None, "it ends by itself")
    training.finish()
    training.check(unharmed(training.recipe), {1: 1}, 2)


def test_an_exception_ends_the_job_at_once_with_its_traceback(trouble):
    training = trouble(3)
    training.suffer("callbacks:2:2:raise")
    with pytest.raises(InjectedError, match="injected at callbacks") as caught:
        training.finish()
    assert "in _callbacks" in str(caught.value.__cause__)
    assert training.spawned() == 3
    assert training.left == []


def test_a_memory_error_is_reported_like_other_exceptions(trouble):
    training = trouble(2, Recipe(callbacks=(Exhausted(),)))
    training.suffer()
    with pytest.raises(MemoryError, match="no memory"):
        training.finish()
    assert training.left == []


#: A training with a state of more than 100 kB.
WIDE = Recipe(width=300, checkpoint_freq=0, epochs=3)


def test_training_continues_without_snapshots_on_a_full_disk(trouble, unharmed):
    training = trouble(2, replace(WIDE, callbacks=(Confined(until=WIDE.epochs - 1),)), snapshot_seconds="0.01")
    training.suffer()
    training.finish()
    training.check(unharmed(WIDE), begun=2)
    assert "cannot write a snapshot" in training._written(1, "stderr")


@contextmanager
def small_disk(training: Trouble) -> Iterator[Path]:
    """Give the checkpoints of a training a disk of their own, which is full."""
    folder = training.tmp / "result" / "model"
    folder.mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], check=False).returncode:
        pytest.skip("this user cannot mount a file system")
    try:
        with suppress(OSError), (folder / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_training_continues_without_checkpoints_on_a_full_disk(trouble, unharmed):
    recipe = replace(WIDE, epochs=12, checkpoint_freq=2)
    training = trouble(2, recipe)
    with small_disk(training) as disk:
        full = f"the disk {disk} is full"
        training.suffer()
        training.wait(lambda: any(full in line for line in training.history()), "a warning")
        training.wait(lambda: full in str(training.status.get("message")), "a message")
        epoch = training.status["epoch"]
        training.wait(lambda: training.status["epoch"] > epoch + 1, "another attempt")
        (disk / "filler").unlink()
        training.wait(lambda: any("written again" in line for line in training.history()), "a checkpoint")
        training.wait(lambda: training.status.get("message") is None, "no message")
        training.finish()
        found = training.result()
    expected = unharmed(recipe)
    assert (found.digest, found.rows) == (expected.digest, expected.rows)
    assert found.checkpoints["model_epoch_final.pth"] == expected.checkpoints["model_epoch_final.pth"]
    assert sum("is full" in line for line in training.history()) == 1
    assert {1: 0, 2: 0}.items() <= training.exits().items() and training.half_written() == []


def test_a_training_that_ends_on_a_full_disk_names_the_disk(trouble):
    training = trouble(2, WIDE)
    with small_disk(training) as disk:
        training.suffer()
        with pytest.raises(OSError, match=rf"model_epoch_final.*the disk {disk} is full: .* more") as caught:
            training.finish()
        assert caught.value.errno == errno.ENOSPC
        assert training.half_written() == [] and not list(disk.rglob("*.pth"))


def test_a_full_disk_at_the_final_checkpoint_ends_the_training(trouble):
    training = trouble(2, replace(WIDE, callbacks=(Confined(),)), snapshot_seconds="0.01")
    training.suffer()
    with pytest.raises(OSError, match=r"the checkpoint .*could not be written: File too large"):
        training.finish()
    assert any("failed at step 9" in line for line in training.history()), "training did not reach the final checkpoint"
    assert list((training.tmp / "result" / "checkpoint").rglob("*.tmp")) == []
    assert training.half_written() == []


def test_a_killed_loader_process_ends_only_its_worker(trouble, unharmed):
    training = trouble(2, Recipe(threads=1))
    training.suffer()
    training.wait_for_step(3)
    os.kill(random.choice(loaders_of(training, 2)), signal.SIGKILL)
    training.wait(lambda: training.spawned() == 3, "a worker instead of the one that cannot load")
    training.finish()
    training.check(unharmed(training.recipe), begun=1)
    assert training.exits()[2] != 0
    assert "a data loader process" in training._written(2, "stderr")


def loaders_of(training: Trouble, worker: int) -> list[int]:
    """Return the process ids of a worker's loaders."""
    pid = training.workers[worker].pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
