"""Kill and resize trainings at random times for hours, and compare the result with a training without faults.

    python tests/faults/soak.py --minutes 30 [--seed 1] [--workers 4] [--json]

Runs trainings of some minutes each with real worker processes. In every other training the first worker gets no faults,
which shows what hundreds of generations leave behind in a process. Prints counts every minute. Exits with 1 if a result
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

#: Steps per second that set the length of a training, and steps per epoch of the script's data set.
PACE, STEPS_PER_EPOCH = 40, 5
#: Seconds without progress after which a worker is suspected. Stopped workers are among the faults.
HANG_SECONDS = 3


@dataclass
class Counts:
    """Counts of faults and failures so far."""

    trainings: int = 0
    kills: int = 0
    stops: int = 0
    resizes: int = 0
    parked: int = 0
    differing: int = 0
    failed: int = 0
    #: For each training, samples over time of the driver and of its oldest worker: (seconds, MB, threads, descriptors).
    driver: list[list[tuple[int, float, int, int]]] = field(default_factory=list)
    oldest: list[list[tuple[int, float, int, int]]] = field(default_factory=list)
    #: Files in /dev/shm, at the beginning and now.
    shared_memory: tuple[int, int] = (0, 0)


def shared_files() -> int:
    """Return the number of files in shared memory on this machine."""
    return len(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else 0


def sample(pid: int) -> tuple[int, float, int, int]:
    """Return the age, memory, threads and descriptors of a process, or zeros if the process has ended."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            memory = round(process.memory_info().rss / 2**20, 1)
            return int(time.time() - process.create_time()), memory, process.num_threads(), process.num_fds()
    except psutil.NoSuchProcess:
        return 0, 0.0, 0, 0


class Trouble:
    """Inject faults into one training until its time is over."""

    def __init__(self, training: Training, workers: int, dice: random.Random, counts: Counts, spared: int) -> None:
        """`spared`: the number of a worker that gets no faults, or 0 for none."""
        self._spared = spared
        self._training = training
        self._workers = workers
        self._dice = dice
        self._counts = counts

    def one(self) -> None:
        """Inject one fault, then wait until the training makes progress."""
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
        """Stop one of several members and wait until it is detected and killed."""
        deaths, alive = self._training.status.get("deaths", 0), self._victims()
        if alive and 1 < len(self._training.alive()) == self._training.status["workers"]:
            self._training.kill(self._dice.choice(alive), signal.SIGSTOP)
            self._counts.stops += 1
            self._training.wait(lambda: self._training.status["deaths"] > deaths, "a stopped worker is found")


def train(folder: Path, epochs: int, slots: int, workers: int) -> Training:
    """Return a training that has not begun."""
    training = Training(folder, slots, workers, epochs=epochs, pace=0.002)
    training.patience = 3600
    training.attributes = {"hang_seconds": str(HANG_SECONDS), "snapshot_seconds": "2"}
    return training


def undisturbed(root: Path, epochs: int) -> tuple[str, list]:
    """Return the result without faults, on one worker at full speed."""
    training = train(root / "undisturbed", epochs, 1, 4)
    training.begin()
    outcome = training.finish()
    assert outcome.returncode == 0, outcome.stderr
    return training.digest, training.rows


def soak(training: Training, trouble: Trouble, seconds: float, steps: int, counts: Counts) -> None:
    """Inject faults for `seconds`, or until the training is nearly complete."""
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
    """Run the soak with the options of the command line and return the exit code."""
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
