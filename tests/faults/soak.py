"""Hours of trouble: kills and resizes at random instants, and the result must be that of an undisturbed training.

    python tests/faults/soak.py --minutes 30 [--seed 1] [--workers 4] [--json]

Runs trainings of some minutes each with real worker processes. In every other one the first worker is spared, to see
what hundreds of generations leave behind in a process. Prints what happened every minute; exits with 1 when a result
differs or a training fails. Not part of the test suite: `tests/elastic/test_churn.py` is.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "elastic")]

from churn import Training  # noqa: E402

#: Steps per second that a training is made long enough for, and steps per epoch of the script's data set.
PACE, STEPS_PER_EPOCH = 40, 5
#: Seconds without progress after which a worker is suspected: stopped workers are part of the trouble.
HANG_SECONDS = 3


@dataclass
class Counts:
    """What has happened so far."""

    trainings: int = 0
    kills: int = 0
    stops: int = 0
    resizes: int = 0
    parked: int = 0
    differing: int = 0
    failed: int = 0
    #: Of each training: (seconds, MB, threads, descriptors) of the driver, and of its oldest worker, from time to time.
    driver: list[list[tuple[int, float, int, int]]] = field(default_factory=list)
    oldest: list[list[tuple[int, float, int, int]]] = field(default_factory=list)
    #: Files in /dev/shm, at the beginning and now.
    shared_memory: tuple[int, int] = (0, 0)


def shared_files() -> int:
    """Files in shared memory on this machine."""
    return len(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else 0


def sample(pid: int) -> tuple[int, float, int, int]:
    """Age, memory, threads and descriptors of a process now; zeros when it has ended."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            memory = round(process.memory_info().rss / 2**20, 1)
            return int(time.time() - process.create_time()), memory, process.num_threads(), process.num_fds()
    except psutil.NoSuchProcess:
        return 0, 0.0, 0, 0


class Trouble:
    """Makes trouble for one training until its time is over."""

    def __init__(self, training: Training, workers: int, dice: random.Random, counts: Counts, spared: int) -> None:
        """`spared`: a worker that nothing is done to; 0 for none."""
        self._spared = spared
        self._training = training
        self._workers = workers
        self._dice = dice
        self._counts = counts

    def one(self) -> None:
        """One misfortune, and training goes on after it."""
        training, dice = self._training, self._dice
        before = training.status.get("step", 0)
        kinds = {"kill": 45, "kills": 5, "stop": 1, "resize": 40, "both": 8, "park": 0 if self._spared else 1}
        (kind,) = dice.choices([*kinds], [*kinds.values()])
        if kind in ("kill", "both"):
            self._kill(1)
        elif kind == "kills":
            self._kill(2)
        elif kind == "stop":
            self._stop()
        elif kind == "park":
            training.resize(0)
            self._counts.parked += 1
        if kind in ("resize", "both", "park"):
            training.resize(dice.choice([n for n in range(1, self._workers + 1) if n != training.slots]))
            self._counts.resizes += 1
        training.wait_for_step(before + 1 + dice.randrange(8))

    def _victims(self) -> list[int]:
        return [worker for worker in self._training.alive() if worker != self._spared]

    def _kill(self, count: int) -> None:
        alive = self._victims()
        for worker in self._dice.sample(alive, min(count, len(alive))):
            self._training.kill(worker)
            self._counts.kills += 1

    def _stop(self) -> None:
        """Stop one of several members; it is found and killed."""
        deaths, alive = self._training.status.get("deaths", 0), self._victims()
        if alive and 1 < len(self._training.alive()) == self._training.status["workers"]:
            self._training.kill(self._dice.choice(alive), signal.SIGSTOP)
            self._counts.stops += 1
            self._training.wait(lambda: self._training.status["deaths"] > deaths, "a stopped worker is found")


def train(folder: Path, epochs: int, slots: int, workers: int) -> Training:
    """A training that has not begun."""
    training = Training(folder, slots, workers, epochs=epochs, pace=0.002)
    training.patience = 3600
    training.attributes = {"hang_seconds": str(HANG_SECONDS), "snapshot_seconds": "2"}
    return training


def undisturbed(root: Path, epochs: int) -> tuple[str, list]:
    """The result without any trouble, on one worker at full speed."""
    training = train(root / "undisturbed", epochs, 1, 4)
    training.begin()
    outcome = training.finish()
    assert outcome.returncode == 0, outcome.stderr
    return training.digest, training.rows


def soak(training: Training, trouble: Trouble, seconds: float, steps: int, counts: Counts) -> None:
    """Trouble for that long, or until the training is nearly through."""
    began = said = time.monotonic()
    training.begin()
    training.wait_for_step(10)

    def look() -> None:
        counts.driver[-1].append(sample(training.driver.pid))
        counts.oldest[-1].append(sample(training.workers[min(training.alive(), default=1)].pid))
        last = {"driver": counts.driver[-1][-1:], "oldest": counts.oldest[-1][-1:]}
        print(json.dumps({**asdict(counts), **last}), file=sys.stderr, flush=True)

    look()
    while time.monotonic() < began + seconds and training.status.get("step", 0) < steps - 200:
        trouble.one()
        if time.monotonic() - said > 60:
            said = time.monotonic()
            look()
    look()


def main() -> int:
    """Soak as asked on the command line; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--each", type=float, default=10, help="minutes of one training")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    counts, dice = Counts(shared_memory=(shared_files(), shared_files())), random.Random(asked.seed)
    each = min(asked.each, asked.minutes)
    epochs = int(each * 60 * PACE / STEPS_PER_EPOCH)
    root = Path(tempfile.mkdtemp(prefix="soak-"))
    expected = undisturbed(root, epochs)
    end = time.monotonic() + asked.minutes * 60
    while time.monotonic() < end:
        counts.trainings += 1
        counts.driver.append([])
        counts.oldest.append([])
        training = train(root / str(counts.trainings), epochs, dice.randint(1, asked.workers), asked.workers)
        try:
            trouble = Trouble(training, asked.workers, dice, counts, spared=counts.trainings % 2)
            soak(training, trouble, min(each * 60, end - time.monotonic()), epochs * STEPS_PER_EPOCH, counts)
            outcome = training.finish()
            counts.failed += outcome.returncode != 0
            counts.differing += (training.digest, training.rows) != expected
        except AssertionError as problem:
            counts.failed += 1
            print(f"training {counts.trainings} in {training.tmp}: {problem}", file=sys.stderr, flush=True)
            break
        finally:
            training.abort()
        shutil.rmtree(training.tmp)
        counts.shared_memory = (counts.shared_memory[0], shared_files())
    print(json.dumps(asdict(counts)) if asked.json else "\n".join(f"{k}: {v}" for k, v in asdict(counts).items()))
    return 1 if counts.failed or counts.differing else 0


if __name__ == "__main__":
    sys.exit(main())
