"""Slots of running elastic jobs: given, taken away, and given back when nothing of the job is on them any more.

docs/adoption.md says why no slot is ever given to two jobs, whoever dies in between.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from local_backend.runtime import launcher_log, processes
from local_backend.runtime.active import Active
from local_backend.runtime.allocation import Allocation, read_report, write_allocation
from local_backend.runtime.records import Records
from local_backend.scheduler.model import Slot
from local_backend.store.execs import ExecRow


class ResizeError(Exception):
    """A job cannot be given that many slots; a sentence without its full stop."""


@dataclass(frozen=True)
class Resized:
    """Numbers of slots."""

    before: int
    after: int


def resizable(row: ExecRow, active: Active | None, count: int | None) -> Active:
    """The running attempt of an exec, if it may be told to have `count` slots (None: what the scheduler gives it).

    Raises ResizeError.
    """
    if not row.elastic:
        raise ResizeError(f"Exec {row.id} is not elastic: {row.framework} runs with the same slots to its end")
    if active is None or active.runner is None or not active.recorded or active.gone:
        raise ResizeError(f"Exec {row.id} is {row.state}; only a running one can be given other slots")
    if active.kill_at is not None:
        raise ResizeError(f"Exec {row.id} is being stopped")
    if row.job.shares:
        raise ResizeError(f"Exec {row.id} shares its slot with others and keeps it to its end")
    if count is not None and not 0 <= count <= row.job.engines:
        raise ResizeError(f"Exec {row.id} cannot have {count} slots: it was submitted for at most {row.job.engines}")
    return active


class Shares:
    """Which slots of the machine (`total`) the running attempts have."""

    def __init__(self, records: Records, total: tuple[Slot, ...]) -> None:
        self._records = records
        self._total = total

    def choice(self, active: Active, count: int, kind: str, everyone: Iterable[Active]) -> tuple[Slot, ...]:
        """`count` slots of this kind for an attempt, which it has or could have now. Raises ResizeError."""
        has, everyone = active.allocation.slots, list(everyone)
        held = held_by(everyone)
        # Slots that it has given up and still holds are as good as free ones: nobody else can have them yet.
        free = [slot for slot in self._total if slot.kind == kind and slot.id not in held]
        free += [slot for slot in active.slots if slot not in has]
        chosen = choose(has, free, count)
        if chosen is None:
            raise ResizeError(_shortage(active, count, len(free), kind, everyone))
        return chosen

    def allot(self, active: Active, slots: tuple[Slot, ...]) -> None:
        """These are an attempt's slots from now on. First in the row, so that no server ever gives them to another,
        then to the runner. Raises what database and disk raise."""
        assert active.runner is not None
        active.service(now := time.monotonic())
        union = tuple(dict.fromkeys([*active.slots, *slots]))
        self._records.slots(active.paths, union)
        # Whatever becomes of the rest, the next turn looks again at what is really held.
        if not active.allocation.slots:
            active.parked += now - active.changed
        active.slots, active.report, active.changed = union, None, now
        allocation = Allocation(active.attempt, active.allocation.sequence + 1, slots)
        write_allocation(active.paths, allocation)
        before, active.allocation = len(active.allocation.slots), allocation
        launcher_log.note(active.paths.launcher_log, "supervisor", f"resized from {before} to {len(slots)} slots")
        processes.send_signal(active.runner, signal.SIGUSR1)

    def heed(self, active: Active) -> None:
        """Do what follows from what the runner says: slots that it does not hold any more are free, and the state of
        the exec is RECOVERING or is not. Raises what the database raises."""
        report = read_report(active.paths, active.attempt)
        if report is None or report == active.report:
            return
        if report.sequence == active.allocation.sequence:  # else it says nothing of slots that it was given since
            held = {*report.held, *(slot.id for slot in active.allocation.slots)}
            kept = tuple(slot for slot in active.slots if slot.id in held)
            if kept != active.slots:
                self._records.slots(active.paths, kept)
                active.slots = kept
        if report.recovering != active.recovering:
            move = self._records.recovering if report.recovering else self._records.running
            move(active.paths, active.attempt)
            active.recovering = report.recovering
        active.report = report


def held_by(everyone: Iterable[Active]) -> set[str]:
    """Ids of the slots that these attempts hold."""
    return {slot.id for active in everyone for slot in active.slots}


def choose(has: Sequence[Slot], free: Sequence[Slot], count: int) -> tuple[Slot, ...] | None:
    """`count` slots for a job that `has` some: it keeps its first ones, and gets more out of `free` in their order.

    None when there are not enough. Pure.
    """
    chosen = (*has[:count], *free[: max(0, count - len(has))])
    return chosen if len(chosen) == count else None


def _shortage(active: Active, count: int, free: int, kind: str, everyone: Iterable[Active]) -> str:
    """Why an attempt cannot have so many slots: how many are free, and who holds the others."""
    others = [
        f"{other.exec_id} holds {number}" for other in everyone
        if other is not active and (number := sum(slot.kind == kind for slot in other.slots))
    ]
    has, more = len(active.allocation.slots), f"{free} more {kind.upper()} slot{' is' if free == 1 else 's are'} free"
    return "; ".join([f"Exec {active.exec_id} cannot have {count} slots: it has {has}, and {more}", *others])
