"""The holders of each slot, and which slots are being given up. For display only; no decision uses it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from local_backend.runtime.active import Active
from local_backend.scheduler.model import Machine, Slot


@dataclass(frozen=True)
class Holder:
    """An exec on a slot."""

    exec_id: str
    #: Whether the exec has given the slot up, but a process of it is still on the slot.
    leaving: bool = False
    #: Fraction of the slot.
    share: float = 1.0


@dataclass(frozen=True)
class SlotPlace:
    """A slot of the machine and its holders."""

    slot: Slot
    holders: tuple[Holder, ...] = ()
    #: Why no job may use the slot any more; None if it may be used.
    drained: str | None = None


def places(machine: Machine, everyone: Iterable[Active]) -> list[SlotPlace]:
    """Return the slots of a machine with their holders among these attempts, in the machine's order."""
    found: dict[str, list[Holder]] = {}
    for active in everyone:
        for name, holder in _holders(active):
            found.setdefault(name, []).append(holder)
    return [
        SlotPlace(slot, tuple(found.get(slot.id, ())), machine.drained.get(slot.id))
        for slot in machine.slots
    ]


def _holders(active: Active) -> list[tuple[str, Holder]]:
    """Return the slots of an attempt, each with its holder. The supervisor may change the attempt meanwhile, so read
    `slots` before `allocation` (see Shares.allot). Otherwise a slot that it has just got would look given up."""
    held = active.slots
    allotted = active.allocation.slots
    return [
        (slot.id, Holder(active.exec_id, slot not in allotted, active.share * max(1, allotted.count(slot))))
        for slot in dict.fromkeys([*held, *allotted])
    ]
