"""The history of a job in sentences: who came, who left, who died, and how long training stood still. Pure."""

from __future__ import annotations

from collections import deque
from statistics import median

from local_backend.elastic.events import Action, Begin, Commit, End, Fail, Note, Switched
from local_backend.elastic.plan import Plan

#: Gaps between commits that make the usual one.
GAPS = 50


class Chronicle:
    """Told all that the hub decides (`heard`, with seconds of a monotonic clock); gives lines for the job's history.

    A change of workers is told after the first step in which they took part, with the time it cost: that from the last
    commit before the change to the commit of that step, less what so many steps usually take.
    """

    def __init__(self) -> None:
        self._plan: Plan | None = None
        #: Newest commit: step (counted over the whole job) and time.
        self._committed: tuple[int, float] | None = None
        self._gaps: deque[float] = deque(maxlen=GAPS)
        #: Changes that are not told yet, the last of which `_switched` is, and the newest commit before the first one.
        self._untold: list[str] = []
        self._switched: Switched | None = None
        self._before: tuple[int, float] | None = None

    def heard(self, action: Action, now: float) -> list[str]:
        """The lines that can be written now."""
        match action:
            case Begin():
                self._plan = action.plan
            case Switched():
                return self._on_switched(action)
            case Commit():
                return self._on_commit(action, now)
            case Note():
                # What was not told yet came before; a pause cannot be told from what comes now.
                lines = self._tell("") if self._interrupts(action) else []
                return [*lines, action.text]
            case End() | Fail():
                return self._tell("")
        return []

    def _on_switched(self, switched: Switched) -> list[str]:
        line = _change(switched)
        if not switched.before:
            # Nothing was going on that could pause.
            return [*self._tell(""), line]
        if not self._untold:
            self._before = self._committed
        self._untold.append(line)
        self._switched = switched
        return []

    def _on_commit(self, commit: Commit, now: float) -> list[str]:
        assert self._plan is not None
        step = commit.epoch * self._plan.steps_per_epoch + commit.step
        last, self._committed = self._committed, (step, now)
        if self._switched is None:
            if last is not None and not self._ends_apart(last[0], step):
                self._gaps.append(now - last[1])
            return []
        if step < self._switched.step:
            # It was done before the change.
            return []
        before, pause = self._before, ""
        if before is not None and self._gaps and not self._ends_apart(before[0], step):
            seconds = now - before[1] - (step - before[0]) * median(self._gaps)
            pause = f", paused {_duration(max(0.0, seconds))}"
        return self._tell(pause)

    def _ends_apart(self, first: int, second: int) -> bool:
        """Whether an epoch ended between two steps: what is done then may take any time."""
        assert self._plan is not None
        return first // self._plan.steps_per_epoch != second // self._plan.steps_per_epoch

    def _interrupts(self, note: Note) -> bool:
        return "parked" in note.text or "recovered" in note.text

    def _tell(self, pause: str) -> list[str]:
        """All changes that are not told; the pause belongs to all of them, and is said with the last."""
        lines, self._untold, self._switched, self._before = self._untold, [], None, None
        return [*lines[:-1], lines[-1] + pause] if lines else []


def _change(switched: Switched) -> str:
    """What a change of workers was."""
    old, new = switched.before, switched.members
    came = [worker for worker in new if worker not in old]
    left = [worker for worker in old if worker not in new]
    where, size = f"step {switched.step}", f"{len(old)} → {len(new)}"
    who = "; ".join(filter(None, [_names(came), _names(left) and f"{_names(left)} left"]))
    if not old:
        begin = "begins" if len(new) == 1 else "begin"
        return f"{where}: {_workers(len(new))} {begin} ({_names(new)})"
    if not switched.planned:
        go = "goes" if len(new) == 1 else "go"
        return f"{where}: {_workers(len(new))} {go} on (generation {switched.generation})"
    if len(new) > len(old):
        return f"{where}: grew {size} ({who})"
    if len(new) < len(old):
        return f"{where}: shrank {size} ({who})"
    if came:
        return f"{where}: changed {size} ({who})"
    return f"{where}: shards per worker are {', '.join(map(str, switched.counts))} (generation {switched.generation})"


def _workers(number: int) -> str:
    return "1 worker" if number == 1 else f"{number} workers"


def _names(workers: list[int] | tuple[int, ...]) -> str:
    return ", ".join(f"worker-{worker}" for worker in workers)


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"
