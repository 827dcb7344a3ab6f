"""Time stamps of applied and committed steps: reads them, and computes pauses and speeds."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

#: Steps of every worker after which a change of their number counts as over.
SETTLING = 8
#: Steps of a worker from which the time of a step is computed.
QUIET = 20
#: Commits after a death that are searched for the interrupted step: at most two steps were in progress.
NEXT = 3
#: Seconds between two checks of a condition.
LOOK = 0.1


@dataclass(frozen=True)
class Stamp:
    """A step that process `pid` on seat `seat` applied at `time` (seconds of the monotonic clock)."""

    time: float
    seat: int
    pid: int
    step: int


@dataclass(frozen=True)
class Commit:
    """A committed step, as the driver's logger saw it. `time` is in seconds of the monotonic clock."""

    time: float
    step: int
    workers: int


class Stamps:
    """All stamps in a folder, read as they are written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}
        self._all: list[Stamp] = []

    def read(self) -> list[Stamp]:
        """Return all stamps so far, in order of time."""
        for path in self._folder.glob("*.steps"):
            seat, pid = map(int, path.stem.split("-"))
            for step, seconds in self._new_lines(path):
                self._all.append(Stamp(float(seconds), seat, pid, int(step)))
        self._all.sort(key=lambda stamp: stamp.time)
        return list(self._all)

    def commits(self) -> list[Commit]:
        """Return all committed steps so far, none if no logger notes them."""
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
    """Return whether exactly `workers` processes, none of them in `without`, made the last SETTLING steps, all of
    them after `since`."""
    tail = stamps[-SETTLING * workers:]
    steps = Counter(stamp.pid for stamp in tail)
    late = len(tail) == SETTLING * workers and tail[0].time > since
    # A new worker makes its first steps alone, to warm up.
    return late and len(steps) == workers and min(steps.values()) >= SETTLING - 2 and not without & steps.keys()


def wait_until(done: Callable[[], bool], seconds: float, failed: Callable[[], str | None]) -> None:
    """Wait until `done` returns true. Raises RuntimeError with the text that `failed` returns, or after `seconds`."""
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
    """The effect of a change on the workers that stayed; times in seconds."""

    #: The longest gap between two steps, minus the time of a step.
    pause: float
    #: An undisturbed step: the longer of the medians before and after.
    step: float
    #: Steps that were repeated because their result was lost.
    lost: int
    #: Seats that stayed, but whose process was replaced.
    restarted: int

    @property
    def steps(self) -> float:
        return self.pause / self.step


def pause(stamps: Iterable[Stamp], begin: float) -> Pause:
    """Return the effect of a change that was requested at `begin` on the seats that have stamps before it and at the
    end.

    The values are the maximum over these seats. Raises RuntimeError when no seat stayed.
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
        # A seat that went back to a snapshot repeats steps, with the same numbers.
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
    """The effect of the death of a worker; times in seconds."""

    #: From the signal to the next step.
    seconds: float
    step: float
    #: Steps whose result was lost.
    lost: int
    #: The longest gap between two steps when the replacement joins, minus the time of a step. None if it is not
    #: measured.
    rejoin: float | None = None


def recovery_of_commits(commits: Sequence[Commit], killed: float) -> Recovery:
    """Return the recovery from a death: its end is the end of the longest gap among the first NEXT commits. A step
    that was already in progress when the worker died does not count as the next step. The result also has the gap
    when the replacement joins."""
    before = [commit for commit in commits if commit.time < killed][-QUIET:]
    pairs = list(pairwise([before[-1], *(commit for commit in commits if commit.time >= killed)]))
    _, end = max(pairs[:NEXT], key=lambda pair: pair[1].time - pair[0].time)
    lost = sum(max(0, left.step - right.step + 1) for left, right in pairs)
    step, full = median_gap(before), before[-1].workers
    few = next(i for i, (_, commit) in enumerate(pairs) if commit.workers < full)
    joins = [right.time - left.time for left, right in pairs[few:] if right.workers == full]
    return Recovery(end.time - killed, step, lost, max(joins) - step)


def recovery_of_restart(stamps: Sequence[Stamp], killed: float) -> Recovery:
    """Return the recovery from a death: its end is the first step of a process that did not exist before."""
    before = [stamp for stamp in stamps if stamp.time < killed]
    first = next(s for s in stamps if s.time >= killed and s.pid not in {old.pid for old in before})
    step = median_gap([stamp for stamp in before if stamp.pid == before[-1].pid][-QUIET:])
    return Recovery(first.time - killed, step, max(stamp.step for stamp in before) - first.step + 1)


def median_gap(stamps: Sequence[Stamp | Commit]) -> float:
    """Return the median of the seconds between neighbors."""
    return statistics.median(right.time - left.time for left, right in pairwise(stamps))


def rate(stamps: Iterable[Stamp], mark: int) -> float:
    """Return the steps per second after step `mark` of each process, as the mean over processes."""
    by_pid: dict[int, list[Stamp]] = {}
    for stamp in stamps:
        by_pid.setdefault(stamp.pid, []).append(stamp)
    rates = []
    for own in by_pid.values():
        timed = [stamp for stamp in own if stamp.step >= mark]
        rates.append((len(timed) - 1) / (timed[-1].time - timed[0].time))
    return statistics.mean(rates)
