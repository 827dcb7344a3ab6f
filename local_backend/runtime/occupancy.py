"""Which slots are held, by whom, and which of them are being given up. A picture for people; nobody decides by it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from local_backend.runtime.active import Active
from local_backend.scheduler.model import Machine, Slot


@dataclass(frozen=True)
class Holder:
    """An exec on a slot."""

    exec_id: str
    #: It has given the slot up, and something of it is still there.
    leaving: bool = False
    #: Of the slot.
    share: float = 1.0


@dataclass(frozen=True)
class Place:
    """A slot of the machine and who is on it."""

    slot: Slot
    holders: tuple[Holder, ...] = ()
    #: Why nobody else may have it, None when it may be used.
    drained: str | None = None


def places(machine: Machine, everyone: Iterable[Active]) -> list[Place]:
    """The slots of a machine with these attempts on it, in the machine's order."""
    found: dict[str, list[Holder]] = {}
    for active in everyone:
        for name, holder in _holders(active):
            found.setdefault(name, []).append(holder)
    return [
        Place(slot, tuple(found.get(slot.id, ())), machine.drained.get(slot.id))
        for slot in machine.slots
    ]


def _holders(active: Active) -> list[tuple[str, Holder]]:
    """The supervisor changes an attempt while this reads it: what it holds first, and then its allocation (see
    Shares.allot). Read in this order, a slot that it has just got is never taken for one that it gives up."""
    held = active.slots
    allotted = active.allocation.slots
    return [
        (slot.id, Holder(active.exec_id, slot not in allotted, active.share * max(1, allotted.count(slot))))
        for slot in dict.fromkeys([*held, *allotted])
    ]
