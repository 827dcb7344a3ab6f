"""Who takes part: workers on slots, generations, deaths. Pure; `hub` calls it, it knows nothing of steps and batches.

A worker goes STARTING → WAITING → LOADING → READY → MEMBER → LEAVING. A *generation* is a numbered list of members.
The next one is *pending* while training goes on: its members connect (`prepare`), all say that they have (`Formed`),
the old members are told (`confirm`), agree among themselves on a step and switch; or, when a member died, the
survivors are told to drop everything and enter a new one (`enter`). Numbers of workers and generations are never used
twice, so whatever arrives late is recognised as late.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from local_backend.elastic.events import Action, Kept, Kill, Note, Ready, Send, Spawn, Switched

#: A slot whose workers ended this many times in a row before they took part is not used any more.
SLOT_FAILURES = 3


class Stage(Enum):
    STARTING = "starting"
    WAITING = "waiting to load its data sets"
    LOADING = "loading its data sets"
    READY = "ready"
    MEMBER = "a member"
    LEAVING = "leaving"


@dataclass(frozen=True)
class Peer:
    """A worker whose process has not ended yet."""

    slot: str
    stage: Stage = Stage.STARTING
    #: Steps that are in its state.
    applied: int = 0
    #: Whether it has been in a generation, and so has a state that training got to.
    holder: bool = False
    #: What it was when it was lost, as long as the history does not say so.
    lost: Stage | None = None


@dataclass(frozen=True)
class Generation:
    number: int
    members: tuple[int, ...]
    #: Shards that each member computes, in their order.
    counts: tuple[int, ...]


NOBODY = Generation(0, (), ())


@dataclass(frozen=True)
class Crew:
    """All that is known about workers. Mappings are never changed in place."""

    #: Most workers that can have something to do.
    most: int
    #: Shards of a step.
    shards: int
    slots: tuple[str, ...] = ()
    peers: Mapping[int, Peer] = field(default_factory=dict)
    spawned: int = 0
    issued: int = 0
    active: Generation = NOBODY
    #: Members of the active generation that have not entered it yet.
    entering: frozenset[int] = frozenset()
    #: Members before the active generation.
    before: tuple[int, ...] = ()
    #: Whether the active generation was wanted, not made because of a death; and whether its members were told to enter
    #: it, or those before agreed to switch, each by itself.
    planned: bool = True
    told: bool = True
    pending: Generation | None = None
    formed: frozenset[int] = frozenset()
    confirmed: bool = False
    #: Slot → workers in a row that ended there before they took part.
    failures: Mapping[str, int] = field(default_factory=dict)
    #: What every data set must be like, from the first worker that loaded it.
    data: Ready | None = None
    resizes: int = 0
    deaths: int = 0
    #: How the last worker ended that was lost, "worker-3 was killed by signal 9", empty as long as none was.
    obituary: str = ""

    def at(self, *stages: Stage) -> tuple[int, ...]:
        """Workers in one of these stages, in order."""
        return tuple(sorted(worker for worker, peer in self.peers.items() if peer.stage in stages))

    def put(self, workers: Iterable[int], **changes: Any) -> Crew:
        """These workers changed."""
        return replace(self, peers={**self.peers, **{w: replace(self.peers[w], **changes) for w in workers}})

    @property
    def settled(self) -> bool:
        """Whether the active generation is in place and no other is under way."""
        return not self.entering and self.pending is None

    @property
    def usable(self) -> tuple[str, ...]:
        """Slots that workers should be on."""
        good = [slot for slot in self.slots if self.failures.get(slot, 0) < SLOT_FAILURES]
        return tuple(good[: self.most])

    @property
    def called(self) -> tuple[int, ...]:
        """Newcomers that were told to enter the pending generation and wait inside."""
        if self.pending is None or not self.confirmed:
            return ()
        return tuple(worker for worker in self.pending.members if worker not in self.active.members)


Outcome = tuple[Crew, tuple[Action, ...]]


def even(shards: int, workers: int) -> tuple[int, ...]:
    """Shards per worker that differ by at most one; the longer ones come first."""
    least, longer = divmod(shards, workers) if workers else (0, 0)
    return tuple(least + (i < longer) for i in range(workers))


def staff(crew: Crew, plan: Mapping[str, Any] | None, epoch: int = 0) -> Outcome:
    """Start workers on empty slots, let those go that take no part and have lost their slot, let arrived ones load.

    `plan` is sent along once there is one; newcomers get a state from others then. `epoch` is the epoch in progress.
    """
    actions: list[Action] = []
    usable, taken = crew.usable, {peer.slot for peer in crew.peers.values()}
    for worker in crew.at(Stage.STARTING, Stage.WAITING, Stage.LOADING, Stage.READY):
        if crew.peers[worker].slot not in usable and worker not in crew.called:
            crew = crew.put([worker], stage=Stage.LEAVING)
            actions.append(Kill(worker))
    for slot in usable:
        if slot not in taken:
            worker = crew.spawned + 1
            crew = replace(crew, spawned=worker, peers={**crew.peers, worker: Peer(slot)})
            actions.append(Spawn(worker, slot))
    waiting = crew.at(Stage.WAITING)
    # The first one loads its data sets alone, for it may have to download them; then all others do.
    if crew.data is None:
        waiting = () if crew.at(Stage.LOADING) else waiting[:1]
    for worker in waiting:
        crew = crew.put([worker], stage=Stage.LOADING)
        actions.append(Send(worker, {"op": "load", "plan": plan, "warm": plan is not None, "epoch": epoch}))
    return crew, tuple(actions)


def wanted(crew: Crew) -> tuple[int, ...]:
    """Members that the generation after the active one should have.

    When all have to go and others have come, one of the old ones stays to hand over its state, and goes with the next.
    """
    usable, ready = crew.usable, crew.at(Stage.READY)
    stay = tuple(worker for worker in crew.active.members if crew.peers[worker].slot in usable)
    if not stay and ready:
        return (crew.active.members[0], *ready[: max(1, crew.most - 1)])
    return (*stay, *ready)[: crew.most]


def propose(crew: Crew, members: tuple[int, ...], counts: tuple[int, ...] | None = None) -> Outcome:
    """Prepare a generation while the active one goes on."""
    generation = Generation(crew.issued + 1, members, counts or even(crew.shards, len(members)))
    everyone = sorted({*crew.active.members, *members})
    crew = replace(crew, issued=generation.number, pending=generation, formed=frozenset(), confirmed=False)
    return crew, tuple(_prepare(worker, generation) for worker in everyone)


def cancel(crew: Crew) -> Outcome:
    """The pending generation, which is not confirmed, will not be."""
    assert crew.pending is not None and not crew.confirmed
    everyone = sorted({*crew.active.members, *crew.pending.members})
    alive = [w for w in everyone if w in crew.peers and crew.peers[w].stage is not Stage.LEAVING]
    number = crew.pending.number
    crew = replace(crew, pending=None, formed=frozenset())
    return crew, tuple(Send(worker, {"op": "cancel", "generation": number}) for worker in alive)


def confirm(crew: Crew) -> Outcome:
    """All members of the pending generation are connected: the old members may switch, newcomers wait inside."""
    assert crew.pending is not None
    number = crew.pending.number
    old = [Send(worker, {"op": "confirm", "generation": number}) for worker in crew.active.members]
    new = [summon(worker, number) for worker in crew.pending.members if worker not in crew.active.members]
    return replace(crew, confirmed=True), (*old, *new)


def call(crew: Crew) -> Outcome:
    """Between two pieces of work: everybody enters the pending generation now."""
    assert crew.pending is not None
    number, before = crew.pending.number, crew.active.members
    new = () if crew.confirmed else crew.pending.members
    everyone = sorted({*before, *new})
    return activate(crew, told=True), tuple(summon(worker, number) for worker in everyone)


def activate(crew: Crew, told: bool = False, planned: bool = True) -> Crew:
    """The pending generation is the active one from now on."""
    assert crew.pending is not None
    old, new = crew.active.members, crew.pending
    leavers = [worker for worker in old if worker not in new.members and worker in crew.peers]
    crew = crew.put(leavers, stage=Stage.LEAVING).put(new.members, stage=Stage.MEMBER)
    failures = {slot: n for slot, n in crew.failures.items() if slot not in {crew.peers[w].slot for w in new.members}}
    return replace(
        crew,
        active=new,
        entering=frozenset(new.members),
        before=old,
        planned=planned,
        told=told,
        pending=None,
        formed=frozenset(),
        confirmed=False,
        failures=failures,
        resizes=crew.resizes + (planned and set(old) != set(new.members)),
    )


def regroup(crew: Crew, members: tuple[int, ...], kept: Kept | None) -> Outcome:
    """Members drop what they have and enter a new generation at once.

    When none of them is known to have a state that training got to, the first one loads `kept` before.
    """
    restore, blob = None, b""
    if kept is not None and not any(crew.peers[worker].holder for worker in members):
        restore, blob = {"path": kept.path, "version": kept.version}, kept.blob
    generation = Generation(crew.issued + 1, members, even(crew.shards, len(members)))
    crew = replace(crew, issued=generation.number, pending=generation, confirmed=False)
    crew = activate(crew, told=True, planned=False)
    actions: list[Action] = [_prepare(worker, generation) for worker in members]
    for i, worker in enumerate(members):
        actions.append(summon(worker, generation.number, *(() if i else (restore, blob))))
    return crew, tuple(actions)


def disband(crew: Crew) -> Crew:
    """There are no members any more."""
    active = replace(NOBODY, number=crew.active.number)
    return replace(crew, active=active, entering=frozenset(), pending=None, formed=frozenset(), confirmed=False)


def enter(crew: Crew, worker: int, generation: int, applied: int) -> Outcome:
    """A worker has entered a generation."""
    pending = crew.pending
    if pending is not None and crew.confirmed and pending.number == generation and worker in pending.members:
        crew = activate(crew)
    if crew.active.number != generation or worker not in crew.entering:
        return crew, ()
    crew = replace(crew.put([worker], applied=applied, holder=True), entering=crew.entering - {worker})
    if crew.entering:
        return crew, ()
    active = crew.active
    return crew, (Switched(generation, crew.before, active.members, active.counts, applied, crew.planned),)


def lose(crew: Crew, worker: int) -> Crew:
    """A worker takes part no more; its slot is free once its process has ended."""
    peer = crew.peers[worker]
    if peer.stage is Stage.LEAVING:
        return crew
    crew = crew.put([worker], stage=Stage.LEAVING, lost=peer.stage)
    if peer.stage is Stage.MEMBER:
        return replace(crew, deaths=crew.deaths + 1)
    return replace(crew, failures={**crew.failures, peer.slot: crew.failures.get(peer.slot, 0) + 1})


def tell(crew: Crew, worker: int, how: str, step: int) -> Outcome:
    """Say in the history how a worker was lost, unless that was said."""
    peer = crew.peers[worker]
    if peer.lost is None:
        return crew, ()
    obituary = f"worker-{worker} {how}"
    text = f"step {step}: {obituary}"
    if peer.lost is not Stage.MEMBER:
        doing = "" if peer.lost is Stage.STARTING else f" while {peer.lost.value}"
        text = obituary = f"{obituary}{doing} on {peer.slot}"
        count = crew.failures.get(peer.slot, 0)
        if count >= SLOT_FAILURES:
            text += f"; {peer.slot} is not used any more: {count} workers in a row ended there before they took part"
    return replace(crew.put([worker], lost=None), obituary=obituary), (Note(text),)


def unusable(crew: Crew) -> str:
    """Why the job fails when workers ended too often on every one of its slots."""
    return f"no worker got as far as training on any slot of the job: {crew.obituary}"


def bury(crew: Crew, worker: int) -> Crew:
    """The process of a worker that was lost, or had left, has ended."""
    return replace(crew, peers={w: peer for w, peer in crew.peers.items() if w != worker})


def _prepare(worker: int, generation: Generation) -> Send:
    return Send(
        worker,
        {
            "op": "prepare",
            "generation": generation.number,
            "members": list(generation.members),
            "counts": list(generation.counts),
        },
    )


def summon(worker: int, number: int, restore: Mapping[str, Any] | None = None, blob: bytes = b"") -> Send:
    """The order to leave everything and enter a generation, from a state that was kept if there is one."""
    return Send(worker, {"op": "enter", "generation": number, "restore": restore}, blob)
