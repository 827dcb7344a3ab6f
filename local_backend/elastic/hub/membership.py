"""Workers on slots, generations and deaths. Pure functions for `hub`; they do not depend on steps and batches.

A worker passes the stages STARTING → WAITING → LOADING → READY → MEMBER → LEAVING. A *generation* is a numbered list of
members. The next generation is *pending* while training continues. Its members connect (`prepare`) and report that they
are connected (`Formed`). Then the hub tells the old members (`confirm`), which agree on a step among themselves and
switch. After the death of a member the hub tells the survivors to drop all work and enter a new generation (`enter`).
Numbers of workers and generations are never used twice, so a late message is always recognized as late.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from local_backend.elastic.hub.events import Action, Kept, Kill, Note, Ready, Send, Spawn, Switched

#: A slot is not used any more after this many workers in a row ended on it before they became members.
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
    #: Optimizer steps in its state.
    applied: int = 0
    #: Whether the worker has entered a generation, and so has a state of the training.
    holder: bool = False
    #: Its stage when it was lost, until the history reports the loss.
    lost: Stage | None = None


@dataclass(frozen=True)
class Generation:
    number: int
    members: tuple[int, ...]
    #: Number of shards of each member, in the order of the members.
    counts: tuple[int, ...]


NOBODY = Generation(0, (), ())


@dataclass(frozen=True)
class Crew:
    """All facts that the hub knows about workers. Mappings are never changed in place."""

    #: Largest number of workers that can have work.
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
    #: Members of the generation before the active one.
    before: tuple[int, ...] = ()
    #: Whether the active generation was planned, not formed because of a death; whether the hub told its members to
    #: enter it. If not, the members before agreed on a step, and each switched by itself.
    planned: bool = True
    told: bool = True
    pending: Generation | None = None
    formed: frozenset[int] = frozenset()
    confirmed: bool = False
    #: Slot → number of workers in a row that ended on it before they became members.
    failures: Mapping[str, int] = field(default_factory=dict)
    #: Description that the data of every worker must match, from the first worker that loaded its data.
    data: Ready | None = None
    resizes: int = 0
    deaths: int = 0
    #: End of the last worker that was lost, for example "worker-3 was killed by signal 9"; empty if none was lost.
    last_loss: str = ""

    def at(self, *stages: Stage) -> tuple[int, ...]:
        """Return the workers in one of these stages, in order."""
        return tuple(sorted(worker for worker, peer in self.peers.items() if peer.stage in stages))

    def put(self, workers: Iterable[int], **changes: Any) -> Crew:
        """Return the crew with these changes to these workers."""
        return replace(self, peers={**self.peers, **{w: replace(self.peers[w], **changes) for w in workers}})

    @property
    def settled(self) -> bool:
        """Whether all members have entered the active generation and no other generation is pending."""
        return not self.entering and self.pending is None

    @property
    def usable(self) -> tuple[str, ...]:
        """Slots that should have a worker."""
        good = [slot for slot in self.slots if self.failures.get(slot, 0) < SLOT_FAILURES]
        return tuple(good[: self.most])

    @property
    def called(self) -> tuple[int, ...]:
        """Newcomers that were told to enter the pending generation and wait in it."""
        if self.pending is None or not self.confirmed:
            return ()
        return tuple(worker for worker in self.pending.members if worker not in self.active.members)


Outcome = tuple[Crew, tuple[Action, ...]]


def even(shards: int, workers: int) -> tuple[int, ...]:
    """Return numbers of shards per worker that differ by at most one. The larger numbers come first."""
    least, longer = divmod(shards, workers) if workers else (0, 0)
    return tuple(least + (i < longer) for i in range(workers))


def staff(crew: Crew, plan: Mapping[str, Any] | None, epoch: int = 0) -> Outcome:
    """Start workers on empty slots, kill non-members that have lost their slot, and let waiting workers load data.

    `plan` goes to loading workers, None before training begins. With a plan, newcomers get a state from members.
    `epoch` is the epoch in progress.
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
    # The first worker loads its data sets alone, because it may have to download them. Then all others load theirs.
    if crew.data is None:
        waiting = () if crew.at(Stage.LOADING) else waiting[:1]
    # Newcomers warm up while members train. Without members, the warm-up would only delay the training.
    warm = bool(crew.active.members)
    for worker in waiting:
        crew = crew.put([worker], stage=Stage.LOADING)
        actions.append(Send(worker, {"op": "load", "plan": plan, "warm": warm, "epoch": epoch}))
    return crew, tuple(actions)


def wanted(crew: Crew) -> tuple[int, ...]:
    """Return the members that the next generation should have.

    If all members must leave and newcomers are ready, one old member stays to hand over its state. This member leaves
    with the following generation.
    """
    usable, ready = crew.usable, crew.at(Stage.READY)
    stay = tuple(worker for worker in crew.active.members if crew.peers[worker].slot in usable)
    if not stay and ready:
        return (crew.active.members[0], *ready[: max(1, crew.most - 1)])
    return (*stay, *ready)[: crew.most]


def propose(crew: Crew, members: tuple[int, ...], counts: tuple[int, ...] | None = None) -> Outcome:
    """Prepare a generation while the active one continues."""
    generation = Generation(crew.issued + 1, members, counts or even(crew.shards, len(members)))
    everyone = sorted({*crew.active.members, *members})
    crew = replace(crew, issued=generation.number, pending=generation, formed=frozenset(), confirmed=False)
    return crew, tuple(_prepare(worker, generation) for worker in everyone)


def cancel(crew: Crew) -> Outcome:
    """Cancel the pending generation, which is not confirmed."""
    assert crew.pending is not None and not crew.confirmed
    everyone = sorted({*crew.active.members, *crew.pending.members})
    alive = [w for w in everyone if w in crew.peers and crew.peers[w].stage is not Stage.LEAVING]
    number = crew.pending.number
    crew = replace(crew, pending=None, formed=frozenset())
    return crew, tuple(Send(worker, {"op": "cancel", "generation": number}) for worker in alive)


def confirm(crew: Crew) -> Outcome:
    """Confirm a pending generation whose members are connected. Old members may switch; newcomers enter and wait."""
    assert crew.pending is not None
    number = crew.pending.number
    old = [Send(worker, {"op": "confirm", "generation": number}) for worker in crew.active.members]
    new = [summon(worker, number) for worker in crew.pending.members if worker not in crew.active.members]
    return replace(crew, confirmed=True), (*old, *new)


def call(crew: Crew) -> Outcome:
    """Tell old and new members to enter the pending generation now, between two tasks."""
    assert crew.pending is not None
    number, before = crew.pending.number, crew.active.members
    new = () if crew.confirmed else crew.pending.members
    everyone = sorted({*before, *new})
    return activate(crew, told=True), tuple(summon(worker, number) for worker in everyone)


def activate(crew: Crew, told: bool = False, planned: bool = True) -> Crew:
    """Make the pending generation the active one."""
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
    """Let members drop their work and enter a new generation at once.

    If no member is known to have a state of the training, the first member loads `kept` before it enters.
    """
    restore, blob = None, b""
    if kept is not None and not any(crew.peers[worker].holder for worker in members):
        restore, blob = {"path": kept.path, "version": kept.position.number}, kept.blob
    generation = Generation(crew.issued + 1, members, even(crew.shards, len(members)))
    crew = replace(crew, issued=generation.number, pending=generation, confirmed=False)
    crew = activate(crew, told=True, planned=False)
    actions: list[Action] = [_prepare(worker, generation) for worker in members]
    for i, worker in enumerate(members):
        actions.append(summon(worker, generation.number, *(() if i else (restore, blob))))
    return crew, tuple(actions)


def disband(crew: Crew) -> Crew:
    """Remove all members."""
    active = replace(NOBODY, number=crew.active.number)
    return replace(crew, active=active, entering=frozenset(), pending=None, formed=frozenset(), confirmed=False)


def enter(crew: Crew, worker: int, generation: int, applied: int) -> Outcome:
    """Note that a worker has entered a generation. When all members have entered it, return Switched."""
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
    """Mark a worker as lost. Its slot is free when its process has ended."""
    peer = crew.peers[worker]
    if peer.stage is Stage.LEAVING:
        return crew
    crew = crew.put([worker], stage=Stage.LEAVING, lost=peer.stage)
    if peer.stage is Stage.MEMBER:
        return replace(crew, deaths=crew.deaths + 1)
    return replace(crew, failures={**crew.failures, peer.slot: crew.failures.get(peer.slot, 0) + 1})


def tell(crew: Crew, worker: int, how: str, step: int) -> Outcome:
    """Report in the history how a worker was lost, unless it was reported before."""
    peer = crew.peers[worker]
    if peer.lost is None:
        return crew, ()
    last_loss = f"worker-{worker} {how}"
    text = f"step {step}: {last_loss}"
    if peer.lost is not Stage.MEMBER:
        doing = "" if peer.lost is Stage.STARTING else f" while {peer.lost.value}"
        text = last_loss = f"{last_loss}{doing} on {peer.slot}"
        count = crew.failures.get(peer.slot, 0)
        if count >= SLOT_FAILURES:
            text += f"; {peer.slot} is no longer used: {count} workers in a row ended there before they joined"
    return replace(crew.put([worker], lost=None), last_loss=last_loss), (Note(text),)


def unusable(crew: Crew) -> str:
    """Return why the job fails: workers ended too often on every one of its slots."""
    return f"no worker started training on any slot of the job: {crew.last_loss}"


def bury(crew: Crew, worker: int) -> Crew:
    """Remove a worker that was lost or had left, and whose process has ended."""
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
    """Return the order to drop all work and enter a generation. `restore` and `blob`: a kept state to load first."""
    return Send(worker, {"op": "enter", "generation": number, "restore": restore}, blob)
