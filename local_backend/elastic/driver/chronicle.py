"""History lines of a job: workers that join, leave or die, and the pauses of training for these changes. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from statistics import median

from local_backend.elastic.hub.events import Action, Commit, End, Fail, Note, Stopped, Switched

#: Number of gaps between commits whose median is the usual gap; number of gaps after a change that are compared with
#: the usual gap. Two, because a newcomer computes from the second step on.
GAPS, COMPARED = 50, 2


class Chronicle:
    """Turns actions of the hub into lines for the job's history.

    The driver passes all actions to `heard`, with the time in seconds of a monotonic clock. The line about a change of
    members comes a little later, with the pause: the time by which the gaps between commits exceeded the usual gap.
    """

    def __init__(self) -> None:
        #: Epoch and time of the newest commit.
        self._last: tuple[int, float] | None = None
        self._gaps: deque[float] = deque(maxlen=GAPS)
        #: Pause of training for the last change of members in seconds; 0 before any change.
        self.pause = 0.0
        #: A change that is not reported yet, and the seconds by which each gap since then exceeds the usual gap.
        self._change: Switched | None = None
        self._since: list[float] = []

    def heard(self, action: Action, now: float) -> list[str]:
        """Take an action, and return the lines that can be written now."""
        lines: list[str] = []
        match action:
            case Switched():
                lines = self._tell()
                if not action.before:
                    return [*lines, _words(action)]  # no training was running that could pause
                self._change, self._since = action, []
                return lines
            case Commit():
                return self._commit(action.epoch, now)
            case Stopped():
                lines = [*self._tell(), f"training ends early, after epoch {action.epoch + 1}: {action.why}"]
            case Note():
                # Often the cause of a death is known only after the others resumed. Other notes come after the change.
                explains = self._change is not None and not self._change.planned and "worker-" in action.text
                lines = [action.text] if explains else [*self._tell(), action.text]
            case End() | Fail():
                lines = self._tell()
        return lines

    def _commit(self, epoch: int, now: float) -> list[str]:
        last, self._last = self._last, (epoch, now)
        gap = None if last is None else now - last[1]
        # Work between two epochs may take any time.
        known = gap is not None and last is not None and last[0] == epoch
        if self._change is None:
            if known and gap is not None:
                self._gaps.append(gap)
            return []
        usual = median(self._gaps) if self._gaps else None
        self._since.append(gap - usual if known and gap is not None and usual is not None else 0.0)
        return [] if len(self._since) < COMPARED else self._tell(None if usual is None else max(0.0, sum(self._since)))

    def _tell(self, pause: float | None = None) -> list[str]:
        change, self._change = self._change, None
        if change is None:
            return []
        if pause is not None:
            self.pause = round(pause, 3)
        return [_words(change) + (f", paused {_duration(pause)}" if pause is not None else "")]


def _words(change: Switched) -> str:
    """Return the history line of a change of members."""
    old, new = change.before, change.members
    came, left = _names(w for w in new if w not in old), _names(w for w in old if w not in new)
    where, size, generation = f"step {change.step}", f"{len(old)} → {len(new)}", f"in generation {change.generation}"
    if not old:
        return f"{where}: {_workers(len(new))} ({came}) {generation}"
    if not change.planned:
        return f"{where}: {_workers(len(new))} {'continues' if len(new) == 1 else 'continue'} {generation}"
    if len(new) == len(old):
        shards = ", ".join(map(str, change.counts))
        return f"{where}: {came} replaced {left}, {size}" if came else f"{where}: shards by speed: {shards}"
    who = ", ".join(filter(None, [came, left and f"{left} left"]))
    return f"{where}: {'grew' if len(new) > len(old) else 'shrank'} {size} ({who})"


def _workers(number: int) -> str:
    return "1 worker" if number == 1 else f"{number} workers"


def _names(workers: Iterable[int]) -> str:
    return ", ".join(f"worker-{worker}" for worker in workers)


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"
