"""A simulated cluster on a virtual clock: runs the jobs of a trace under one way of sharing slots, event by event."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, quantiles
from typing import Protocol

from local_backend.scheduler.model import CPU, Machine, ResourcePlan, SchedulerJob, Slot
from local_backend.scheduler.policy import decide
from scheduling_bench.trace import Submission

#: Seconds for which training pauses on a resize.
PAUSE = 1.0
#: Minimum seconds between two decisions.
QUANTUM = 5.0
#: Seconds between two measurements of fairness.
WINDOW = 3600.0


@dataclass
class Running:
    """A job of the trace that has been submitted and has not ended. It does `slots` slot-seconds of work per second."""

    what: Submission
    left: float
    slots: int = 0
    since: float = 0.0
    resizes: int = 0

    def go_on(self, now: float) -> float:
        """Count the work that the job has done until `now`. Return it in slot-seconds."""
        done = max(0.0, now - self.since) * self.slots
        self.left -= done
        self.since = max(self.since, now)
        return done

    def change(self, slots: int, now: float) -> None:
        """Set the number of slots from now on. A running job pauses for PAUSE seconds; a job that begins does not."""
        if self.slots and slots:
            self.resizes += 1
            self.since = now + PAUSE
        elif slots:
            self.since = now
        self.slots = slots

    @property
    def ends(self) -> float:
        return self.since + self.left / self.slots if self.slots else float("inf")


class Sharing(Protocol):
    """A way of sharing slots."""

    def turn(self, now: float, jobs: dict[int, Running]) -> dict[int, int]:
        """Return job → number of slots from now on, for the jobs whose number changes."""

    def ended(self, number: int) -> None:
        """Note that a job has ended."""


class Fifo:
    """Jobs of fixed size in the order of submission. A job gets all its slots or none, and no job overtakes another.
    With `users`, each user has an equal part of the slots."""

    def __init__(self, slots: int, users: Sequence[str] = ()) -> None:
        self._free = {user: slots // len(users) for user in users} if users else {"": slots}
        self._most = max(self._free.values())
        self._has: dict[int, tuple[str, int]] = {}

    def turn(self, now: float, jobs: dict[int, Running]) -> dict[int, int]:
        found, blocked = {}, set()
        for number, job in jobs.items():
            part = job.what.user if "" not in self._free else ""
            if job.slots or part in blocked:
                continue
            size = min(job.what.slots, self._most)
            if size > self._free[part]:
                blocked.add(part)
                continue
            self._free[part] -= size
            self._has[number] = part, size
            found[number] = size
        return found

    def ended(self, number: int) -> None:
        part, size = self._has.pop(number)
        self._free[part] += size


class Ours:
    """The policy of this backend. All jobs are elastic, from 1 slot to the number that they ask for."""

    def __init__(self, slots: int, plan: ResourcePlan) -> None:
        self._machine = Machine(tuple(Slot(f"cpu-{number}", CPU) for number in range(slots)))
        self._plan = plan
        self._jobs: dict[int, SchedulerJob] = {}

    def turn(self, now: float, jobs: dict[int, Running]) -> dict[int, int]:
        for number, job in jobs.items():
            if number not in self._jobs:
                self._jobs[number] = SchedulerJob(
                    f"local-{number}", job.what.user, CPU, ("local", "training"), job.what.at, least=1,
                    most=job.what.slots, elastic=True, pause=PAUSE,
                )
        decision = decide(self._machine, self._plan, self._jobs.values(), now)
        found = {}
        for name, slots in [*decision.start.items(), *decision.resize.items()]:
            number, ids = int(name.rpartition("-")[2]), tuple(slot.id for slot in slots)
            job = self._jobs[number]
            self._jobs[number] = replace(
                job, running=True, slots=ids, held=ids, changed=now, started=job.started if job.running else now
            )
            found[number] = len(ids)
        return found

    def ended(self, number: int) -> None:
        del self._jobs[number]


@dataclass
class Result:
    """The measurements of a simulation."""

    completion: list[float] = field(default_factory=list)
    resizes: int = 0
    #: Slot-seconds used, and slot-seconds available, while jobs asked for at least all slots.
    used: float = 0.0
    there: float = 0.0
    fairness: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, float]:
        """Return times in seconds, utilization and fairness as fractions, and resizes per job."""
        return {
            "mean completion": fmean(self.completion),
            "p99 completion": quantiles(self.completion, n=100)[-1],
            "utilisation": self.used / self.there if self.there else 1.0,
            "fairness": fmean(self.fairness) if self.fairness else 1.0,
            "resizes per job": self.resizes / len(self.completion),
        }


class Window:
    """The slot-seconds that each user had, and was entitled to, in a stretch of time."""

    def __init__(self) -> None:
        self._had: dict[str, float] = defaultdict(float)
        self._due: dict[str, float] = defaultdict(float)
        #: Whether jobs have asked for at least all slots during the whole window.
        self._backlog = True
        #: Users who had jobs in the whole window. Others are left out: they get and lose slots only at decisions.
        self._there: set[str] | None = None

    def count(self, jobs: Iterable[Running], slots: int, seconds: float) -> None:
        """Add a stretch of time in which nothing changed."""
        wanted: dict[str, int] = defaultdict(int)
        for job in jobs:
            wanted[job.what.user] += job.what.slots
            self._had[job.what.user] += job.slots * seconds
        self._backlog &= sum(wanted.values()) >= slots
        self._there = set(wanted) if self._there is None else self._there & set(wanted)
        for user, due in _entitled(wanted, slots).items():
            self._due[user] += due * seconds

    def fairness(self) -> list[float]:
        """Return Jain's index of the slot-seconds that users had, relative to their entitlement. The list is empty if
        there were enough slots for all (Jain, Chiu, Hawe, "A quantitative measure of fairness and discrimination",
        1984, with the fair share as the optimum)."""
        values = [self._had[user] / due for user, due in self._due.items() if user in (self._there or ())]
        squares = sum(value * value for value in values)
        return [sum(values) ** 2 / (len(values) * squares)] if self._backlog and len(values) > 1 and squares else []


def _entitled(wanted: dict[str, int], slots: int) -> dict[str, float]:
    """Return max-min fair shares, not rounded to whole slots: the user who wants least is served first, and the rest
    is left to the others."""
    found, left = {}, float(slots)
    for i, (user, most) in enumerate(sorted(wanted.items(), key=lambda pair: pair[1])):
        found[user] = min(float(most), left / (len(wanted) - i))
        left -= found[user]
    return found


def simulate(submissions: Sequence[Submission], slots: int, sharing: Sharing) -> Result:
    """Run all jobs until they have ended. Return the measurements."""
    result, jobs, window = Result(), dict[int, Running](), Window()
    coming, now, until_window = list(reversed(submissions)), 0.0, WINDOW
    ends = float("inf")
    while coming or jobs:
        event = min(coming[-1].at if coming else float("inf"), ends)
        until = min(max(event, now + QUANTUM), max(until_window, now))
        _pass(jobs, slots, until - now, result, window)
        for job in jobs.values():
            job.go_on(until)
        now = until
        if now >= until_window:
            result.fairness += window.fairness()
            window, until_window = Window(), until_window + WINDOW
        for number in [number for number, job in jobs.items() if job.left <= 1e-6]:
            result.completion.append(now - jobs[number].what.at)
            result.resizes += jobs.pop(number).resizes
            sharing.ended(number)
        while coming and coming[-1].at <= now:
            one = coming.pop()
            jobs[one.number] = Running(one, one.work)
        for number, count in sharing.turn(now, jobs).items():
            jobs[number].change(count, now)
        ends = min((job.ends for job in jobs.values() if job.slots), default=float("inf"))
    return result


def _pass(jobs: dict[int, Running], slots: int, seconds: float, result: Result, window: Window) -> None:
    if sum(job.what.slots for job in jobs.values()) >= slots:
        result.used += sum(job.slots for job in jobs.values()) * seconds
        result.there += slots * seconds
    window.count(jobs.values(), slots, seconds)
