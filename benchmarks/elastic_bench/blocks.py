"""Sides of a comparison: each trains a number of steps on request, and waits in between without using the processor."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from elastic_bench.machine import environment
from elastic_bench.runner import Runner
from elastic_bench.stamps import Stamps, rate

SCRIPTS = Path(__file__).parent / "scripts"
#: Steps at the start of a block that are not timed.
MARK = 5


class Side(Protocol):
    """One way to train."""

    def block(self, steps: int) -> float:
        """Train `steps` steps. Return the steps per second after the first MARK steps. Raises RuntimeError."""

    def close(self) -> None:
        """End the processes of this side."""


class Fabric:
    """FabricModel. Each block is a training of its own, in one driver that stays alive."""

    def __init__(self, folder: Path, model: str, workers: int, mode: str) -> None:
        (folder / "stamps").mkdir(parents=True)
        self._stamps = Stamps(folder / "stamps")
        self._mode = mode
        self.runner = Runner(
            folder, SCRIPTS / "fabric_train.py", model, slots=workers, most=workers,
            attributes={"mode": mode}, BENCH_STAMPS=str(folder / "stamps"),
        )

    def block(self, steps: int) -> float:
        known = len(self._stamps.read())
        self.runner.order(f"{self._mode} {steps} {MARK}")
        self.runner.wait_for("done")
        return rate(self._stamps.read()[known:], MARK)

    def close(self) -> None:
        self.runner.close()


class Ddp:
    """A hand-written loop around DistributedDataParallel, in processes that stay alive."""

    def __init__(self, folder: Path, model: str, workers: int) -> None:
        (folder / "stamps").mkdir(parents=True)
        self._stamps = Stamps(folder / "stamps")
        self._log = folder / "ddp.log"
        with self._log.open("w") as log:
            self._ranks = [
                subprocess.Popen(
                    [sys.executable, str(SCRIPTS / "ddp_train.py"), model],
                    env=environment(
                        BENCH_STAMPS=str(folder / "stamps"), BENCH_SEAT=str(rank), RANK=str(rank),
                        WORLD_SIZE=str(workers), MASTER_FILE=str(folder / "store"),
                    ),
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                )
                for rank in range(workers)
            ]

    def block(self, steps: int) -> float:
        known = len(self._stamps.read())
        for process in self._ranks:
            assert process.stdin is not None
            process.stdin.write(f"{steps} {MARK}\n")
            process.stdin.flush()
        for process in self._ranks:
            assert process.stdout is not None
            if process.stdout.readline() != "done\n":
                raise RuntimeError(f"the DDP loop has ended: {self._log.read_text()[-300:]}")
        return rate(self._stamps.read()[known:], MARK)

    def close(self) -> None:
        for process in self._ranks:
            process.kill()
            process.wait()


class Independent:
    """DDP loops of one worker each that share only the machine: the maximum that two cores can give."""

    def __init__(self, folder: Path, model: str, workers: int) -> None:
        self._loops = [Ddp(folder / str(i), model, 1) for i in range(workers)]

    def block(self, steps: int) -> float:
        """Train the steps in equal parts on all loops. Return the sum of their speeds."""
        part = steps // len(self._loops) + MARK
        with ThreadPoolExecutor(len(self._loops)) as pool:
            return sum(pool.map(lambda loop: loop.block(part), self._loops))

    def close(self) -> None:
        for loop in self._loops:
            loop.close()


def alternate(sides: Mapping[str, Side], rounds: int, seconds: float) -> dict[str, list[float]]:
    """Return the steps per second of each side in each round.

    A block takes about `seconds`, and has the same number of steps on every side. Every other round runs in reverse
    order.
    """
    for side in sides.values():
        # Not counted: the first block imports modules and creates objects.
        first = side.block(4 * MARK)
    steps = MARK + max(4 * MARK, round(first * seconds))
    found: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in list(sides)[:: -1 if number % 2 else 1]:
            found[name].append(sides[name].block(steps))
    return found


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the median over rounds of the ratio within a round."""
    return statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))
