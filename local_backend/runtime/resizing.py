"""Slots of running elastic jobs: given, taken away, and released when no process of the job is left on them.

docs/adoption.md explains why no slot is ever given to two jobs, even if a process dies in between.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from local_backend.runtime import launcher_log
from local_backend.runtime.active import Active
from local_backend.runtime.records import Records
from local_backend.scheduler.model import Allocation, Slot
from local_backend.store.execs import ExecRow


class ResizeError(Exception):
    """Raised when a job cannot get that many slots. The message is a sentence without a full stop."""


@dataclass(frozen=True)
class Resized:
    """Numbers of slots before and after a resize."""

    before: int
    after: int


def resizable(row: ExecRow, active: Active | None, count: int | None) -> Active:
    """Return the running attempt of an exec, if it may get `count` slots (None: as the scheduler decides).

    Raises ResizeError.
    """
    if not row.elastic:
        raise ResizeError(f"Exec {row.id} is not elastic: {row.framework} holds its slots until it finishes")
    if active is None or not active.recorded or active.run.ended:
        raise ResizeError(f"Exec {row.id} is {row.state}; only a running exec can be resized")
    if active.kill_at is not None:
        raise ResizeError(f"Exec {row.id} is being stopped")
    if row.rested is not None:
        raise ResizeError(f"Exec {row.id} rests after epoch {row.rested} and needs no slots")
    if row.idle:
        raise ResizeError(f"Exec {row.id} has no requests and needs no slots")
    if row.workload.resources.shares:
        raise ResizeError(f"Exec {row.id} shares its slot with other execs, so the number of its slots cannot change")
    most = row.workload.resources.engines
    if count is not None and not 0 <= count <= most:
        raise ResizeError(f"Exec {row.id} cannot have {count} slots: it was submitted for at most {most}")
    return active


class Shares:
    """Assigns slots of the machine (`total`) to running attempts."""

    def __init__(self, records: Records, total: tuple[Slot, ...]) -> None:
        self._records = records
        self._total = total

    def choice(self, active: Active, count: int, kind: str, everyone: Iterable[Active]) -> tuple[Slot, ...]:
        """Return `count` slots of this kind that an attempt has or could get now. Raises ResizeError."""
        has, everyone = active.allocation.slots, list(everyone)
        held = held_by(everyone)
        # Slots that the attempt has given up but still holds count as free: no other exec can have them yet.
        free = [slot for slot in self._total if slot.kind == kind and slot.id not in held]
        free += [slot for slot in active.slots if slot not in has]
        chosen = choose(has, free, count)
        if chosen is None:
            raise ResizeError(_shortage(active, count, len(free), kind, everyone))
        return chosen

    def allot(self, active: Active, slots: tuple[Slot, ...], rest: int | None) -> None:
        """Set the slots of an attempt: first in the row, so that no server ever gives them to another exec, then for
        the runner. Set the epoch after which the job rests, too. Raises database errors."""
        active.service(now := time.monotonic())
        before = active.allocation.slots
        if slots != before:
            union = (*active.slots, *(Counter(slots) - Counter(active.slots)).elements())
            self._records.slots(active.paths, union)
            # If the runner does not get the allocation, its next state says so, and `heed` puts the row right.
            if not before:
                active.parked += now - active.changed
            active.slots, active.changed = union, now
            text = f"resized from {len(before)} to {len(slots)} slots"
            launcher_log.note(active.paths.launcher_log, "supervisor", text)
        active.allocation = Allocation(slots, active.allocation.sequence + 1, rest)
        active.run.allocate(active.allocation)

    def heed(self, active: Active) -> None:
        """Act on the state that the runner has sent: release slots that the runner no longer holds, record that the job
        rests, and set or clear the state RECOVERING. Raises database errors."""
        found = active.run.held
        if found is None or not active.elastic:
            return
        if found.sequence == active.allocation.sequence:  # an older state does not cover slots given since
            held = Counter(found.held) | Counter(slot.id for slot in active.allocation.slots)
            kept = _kept(active.slots, held)
            if kept != active.slots:
                self._records.slots(active.paths, kept)
                active.slots = kept
            if found.rested is not None and found.rested != active.noted:
                self._records.rested(active.paths, found.rested)
                active.noted = found.rested
        if found.recovering != active.recovering:
            move = self._records.recovering if found.recovering else self._records.running
            move(active.paths, active.attempt)
            active.recovering = found.recovering


def _kept(slots: Iterable[Slot], held: Counter[str]) -> tuple[Slot, ...]:
    """Return these slots, each as often as it is held."""
    kept, left = [], held.copy()
    for slot in slots:
        if left[slot.id] > 0:
            left[slot.id] -= 1
            kept.append(slot)
    return tuple(kept)


def held_by(everyone: Iterable[Active]) -> set[str]:
    """Return the ids of the slots that these attempts hold."""
    return {slot.id for active in everyone for slot in active.slots}


def choose(has: Sequence[Slot], free: Sequence[Slot], count: int) -> tuple[Slot, ...] | None:
    """Return `count` slots for a job that `has` some: its first ones, then more from `free` in order.

    Return None when there are not enough. Pure.
    """
    chosen = (*has[:count], *free[: max(0, count - len(has))])
    return chosen if len(chosen) == count else None


def _shortage(active: Active, count: int, free: int, kind: str, everyone: Iterable[Active]) -> str:
    """Return why an attempt cannot have this many slots: how many are free, and which execs hold the others."""
    others = [
        f"{other.exec_id} holds {number}" for other in everyone
        if other is not active and (number := sum(slot.kind == kind for slot in other.slots))
    ]
    has, more = len(active.allocation.slots), f"{free} more {kind.upper()} slot{' is' if free == 1 else 's are'} free"
    return "; ".join([f"Exec {active.exec_id} cannot have {count} slots: it has {has}, and {more}", *others])
