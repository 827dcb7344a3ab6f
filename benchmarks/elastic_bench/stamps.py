"""Time stamps of applied and committed steps: reading them, and what they say about pauses and speed."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

#: Steps of every worker after which a change of their number is over.
SETTLING = 8
#: Steps of a worker that tell how long a step takes.
QUIET = 20
#: Commits after a death among which is that of the step that was broken off: at most two steps were on their way.
NEXT = 3
#: Seconds between two looks.
LOOK = 0.1


@dataclass(frozen=True)
class Stamp:
    """A step that process `pid` on seat `seat` had applied at `time` (seconds of the monotonic clock)."""

    time: float
    seat: int
    pid: int
    step: int


@dataclass(frozen=True)
class Commit:
    """A committed step as the driver's logger saw it."""

    time: float
    step: int
    workers: int


class Stamps:
    """All stamps in a folder, read as they come."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}
        self._all: list[Stamp] = []

    def read(self) -> list[Stamp]:
        """All so far, in order of time."""
        for path in self._folder.glob("*.steps"):
            seat, pid = map(int, path.stem.split("-"))
            for step, seconds in self._new_lines(path):
                self._all.append(Stamp(float(seconds), seat, pid, int(step)))
        self._all.sort(key=lambda stamp: stamp.time)
        return list(self._all)

    def commits(self) -> list[Commit]:
        """All committed steps so far; empty where nobody notes them."""
        path = self._folder / "committed"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [Commit(float(line[1]), int(line[0]), int(line[2])) for line in lines if len(line) == 3]

    def _new_lines(self, path: Path) -> list[list[str]]:
        with path.open("rb") as file:
            file.seek(self._offsets.get(path, 0))
            whole = file.read().rpartition(b"\n")[0]
        if not whole:
            return []
        self._offsets[path] = self._offsets.get(path, 0) + len(whole) + 1
        return [line.split() for line in whole.decode().split("\n")]


def settled(stamps: Sequence[Stamp], workers: int, since: float, without: frozenset[int] = frozenset()) -> bool:
    """Whether exactly that many processes, none of `without`, have made the last SETTLING steps, all later than
    `since`.
    """
    tail = stamps[-SETTLING * workers:]
    steps = Counter(stamp.pid for stamp in tail)
    late = len(tail) == SETTLING * workers and tail[0].time > since
    # A newcomer's first steps are made alone, to warm up.
    return late and len(steps) == workers and min(steps.values()) >= SETTLING - 2 and not without & steps.keys()


def wait_until(done: Callable[[], bool], seconds: float, failed: Callable[[], str | None]) -> None:
    """Look until `done`. Raises RuntimeError with what `failed` returns, and when it takes longer than `seconds`."""
    deadline = time.monotonic() + seconds
    while not done():
        reason = failed()
        if reason is not None:
            raise RuntimeError(reason)
        if time.monotonic() > deadline:
            raise RuntimeError(f"did not happen within {seconds:g} s")
        time.sleep(LOOK)


@dataclass(frozen=True)
class Pause:
    """How a change looked to those who stayed; seconds."""

    #: The longest gap between two steps, less a step.
    pause: float
    #: An undisturbed step: the longer of the medians before and after.
    step: float
    #: Steps that were made again because what they had done was lost.
    lost: int
    #: Seats that stayed and whose process was replaced.
    restarted: int

    @property
    def steps(self) -> float:
        return self.pause / self.step


def pause(stamps: Iterable[Stamp], begin: float) -> Pause:
    """What a change that was ordered at `begin` did to the seats that have stamps before and at the end.

    The longest over those seats. Raises RuntimeError when no seat stayed.
    """
    by_seat: dict[int, list[Stamp]] = {}
    for stamp in stamps:
        by_seat.setdefault(stamp.seat, []).append(stamp)
    end = max(stamp.time for seat in by_seat.values() for stamp in seat)
    found = []
    for own in by_seat.values():
        before, after = ([s for s in own if (s.time < begin) is early] for early in (True, False))
        recent = before[-QUIET:]
        stayed = len(recent) > 2 and len(after) >= SETTLING and all(
            away < SETTLING * median_gap(recent) for away in (begin - recent[-1].time, end - after[-1].time)
        )
        if not stayed:
            continue
        step = max(median_gap(recent), median_gap(after[-SETTLING:]))
        pairs = list(pairwise([recent[-1], *after]))
        gap = max(right.time - left.time for left, right in pairs)
        # A seat that went back to a snapshot makes steps again, with the same numbers.
        lost = sum(max(0, left.step - right.step + 1) for left, right in pairs)
        found.append(Pause(gap - step, step, lost, int(recent[-1].pid != after[-1].pid)))
    if not found:
        raise RuntimeError("no worker that was there before is there after")
    return Pause(
        max(p.pause for p in found), max(p.step for p in found), max(p.lost for p in found),
        sum(p.restarted for p in found),
    )


@dataclass(frozen=True)
class Recovery:
    """What the death of a worker did; seconds."""

    #: From the signal to the next step.
    seconds: float
    step: float
    #: Steps whose result was gone.
    lost: int
    #: The longest gap between two steps when the replacement joins, less a step; None where it is not measured.
    rejoin: float | None = None


def recovery_of_commits(commits: Sequence[Commit], killed: float) -> Recovery:
    """Return the end of the longest gap among the first NEXT commits after a death, and the gap when the replacement
    joins. A step that was on its way when the worker died is not the next.
    """
    before = [commit for commit in commits if commit.time < killed][-QUIET:]
    pairs = list(pairwise([before[-1], *(commit for commit in commits if commit.time >= killed)]))
    _, end = max(pairs[:NEXT], key=lambda pair: pair[1].time - pair[0].time)
    lost = sum(max(0, left.step - right.step + 1) for left, right in pairs)
    step, full = median_gap(before), before[-1].workers
    few = next(i for i, (_, commit) in enumerate(pairs) if commit.workers < full)
    joins = [right.time - left.time for left, right in pairs[few:] if right.workers == full]
    return Recovery(end.time - killed, step, lost, max(joins) - step)


def recovery_of_restart(stamps: Sequence[Stamp], killed: float) -> Recovery:
    """From a death to the first step of a process that was not there before."""
    before = [stamp for stamp in stamps if stamp.time < killed]
    first = next(s for s in stamps if s.time >= killed and s.pid not in {old.pid for old in before})
    step = median_gap([stamp for stamp in before if stamp.pid == before[-1].pid][-QUIET:])
    return Recovery(first.time - killed, step, max(stamp.step for stamp in before) - first.step + 1)


def median_gap(stamps: Sequence[Stamp | Commit]) -> float:
    """Median seconds between two neighbours."""
    return statistics.median(right.time - left.time for left, right in pairwise(stamps))


def rate(stamps: Iterable[Stamp], mark: int) -> float:
    """Steps per second after step `mark` of each process, the mean over processes."""
    by_pid: dict[int, list[Stamp]] = {}
    for stamp in stamps:
        by_pid.setdefault(stamp.pid, []).append(stamp)
    rates = []
    for own in by_pid.values():
        timed = [stamp for stamp in own if stamp.step >= mark]
        rates.append((len(timed) - 1) / (timed[-1].time - timed[0].time))
    return statistics.mean(rates)
