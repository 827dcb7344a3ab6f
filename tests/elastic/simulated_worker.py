"""A worker without a process: it sends the messages of a real worker and acts on orders. `simulation` is its world.

All members of a generation must reach a collective; then each leaves it on its own. If a member has died or dropped its
connections, the others leave the collective or see a break, in random order. The state of a worker is a checksum of all
changes to it. So a step that is applied twice, left out or computed from another state shows in every later result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from simulated_training import computed, mix, told, validated

from local_backend.elastic.hub.events import (
    Applied,
    Arrived,
    AtBoundary,
    BatchResult,
    Broken,
    Entered,
    Event,
    Finished,
    Formed,
    Left,
    Published,
    Ready,
    Stepped,
    TaskDone,
)
from local_backend.elastic.hub.membership import even
from local_backend.elastic.plan import StepPlan
from local_backend.elastic.position import BEGINNING, EpochStage, Position

if TYPE_CHECKING:
    from simulation import World

class Group:
    """The connected members of a generation."""

    def __init__(self, members: tuple[int, ...], counts: tuple[int, ...], away: set[int]) -> None:
        self.members, self.counts = members, counts
        self.positions: dict[int, tuple[int, int]] = {}
        #: The state that holders send, after one of them has begun to send.
        self.sent: tuple[int, int] | None = None
        self.sums: dict[int, dict[int, tuple[int, tuple[int, ...], int]]] = {}
        #: Members that have died or dropped their connections.
        self.away = away

    def holders(self) -> list[int]:
        top = max(self.positions.values())
        return [member for member in self.members if self.positions[member] == top]


class Worker:
    """A simulated process. `moves` yields the possible next moves of its main thread; `hear` is its control thread."""

    def __init__(self, world: World, number: int, slot: str) -> None:
        self.world, self.number, self.slot = world, number, slot
        self.alive, self.stopped, self.ended = True, False, False
        self.says: deque[Event] = deque()
        self.mail: deque[tuple[dict[str, Any], bytes]] = deque()
        self.orders: deque[tuple[dict[str, Any], bytes]] = deque()
        self.proposals: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        #: Generation → members with a known address, for groups that are not in use yet; and the dropped generations.
        self.found: dict[int, set[str]] = {}
        self.shut: set[int] = set()
        self.called, self.word, self.generation = 0, 0, 0
        self.group: Group | None = None
        self.old: Group | None = None
        self.mode: Callable[[], Iterator[Callable[[], None]]] = self.arriving
        self.position, self.content = BEGINNING, 0
        self.fresh = False
        #: The worker has entered the generation and has not applied a step in it yet.
        self.entered = False
        self.task: dict[str, Any] = {}

    # --- the control thread

    def hear(self) -> None:
        message, blob = self.mail.popleft()
        number = message.get("generation", 0)
        match message["op"]:
            case "prepare":
                members, counts = tuple(message["members"]), tuple(message["counts"])
                self.proposals[number] = members, counts
                for old in [other for other in self.found if not self.connected(other)]:
                    self.abandon(old)
                if self.number in members:
                    self.found[number] = {str(self.number)}
                    self.says.append(Published(self.number, number, str(self.number), b"address"))
                    self.formed(number)
            case "address" if number in self.found:
                self.found[number].add(message["key"])
                self.formed(number)
            case "address":
                pass
            case "cancel":
                self.abandon(number)
            case "confirm":
                assert self.connected(number) or self.number not in self.proposals[number][0]
                self.word = number
            case "ping":
                self.world.liveness.ponged(self.number, self.phase(), self.world.now)
            case op:
                if op == "enter":
                    for old in [other for other in self.found if other < number]:
                        self.abandon(old)
                    self.called = max(self.called, number)
                self.orders.append((message, blob))

    def abandon(self, number: int) -> None:
        """Drop connections that are not in use yet. The other members notice."""
        if self.found.pop(number, None) is not None:
            self.shut.add(number)
            if number in self.world.groups:
                self.world.groups[number].away.add(self.number)

    def formed(self, number: int) -> None:
        if self.connected(number):
            self.says.append(Formed(self.number, number))

    def connected(self, number: int) -> bool:
        return number in self.found and self.found[number] == {str(m) for m in self.proposals[number][0]}

    def phase(self) -> str:
        return "computing" if self.mode == self.going else "waiting"

    # --- the main thread: in each mode, the possible next moves

    def moves(self) -> Iterator[Callable[[], None]]:
        return self.mode()

    def arriving(self) -> Iterator[Callable[[], None]]:
        def connect() -> None:
            self.says.append(Arrived(self.number))
            self.mode = self.waiting

        yield connect

    def waiting(self) -> Iterator[Callable[[], None]]:
        if self.orders:
            yield lambda: self.obey(*self.orders.popleft())

    def obey(self, message: dict[str, Any], blob: bytes) -> None:
        match message["op"]:
            case "load":
                self.mode = self.loading
            case "bye":
                self.ended = True
                self.world.die(self, "has ended")
            case "keep":
                self.world.keep(self)
            case "enter" if message["generation"] > self.generation:
                self.enter(message["generation"], message["restore"], blob)
            case "state":
                self.says.append(Finished(self.number, repr(self.content).encode()))
            case _:
                pass  # of a generation or a boundary that is over

    def loading(self) -> Iterator[Callable[[], None]]:
        def load() -> None:
            self.says.append(Ready(self.number, self.world.samples, self.world.test_batches))
            self.mode = self.waiting

        yield load

    def enter(self, number: int, restore: dict[str, Any] | None = None, blob: bytes = b"") -> None:
        if self.number not in self.proposals[number][0]:
            self.says.append(Left(self.number))
            self.mode = self.waiting
            return
        self.generation = number
        if restore is not None and (restore["version"] > self.position.number or self.world.careless):
            self.position, self.content = self.world.load(restore["path"], blob)
        self.mode = self.entering

    def could_step(self) -> bool:
        """Whether the worker might take part in a sum that some members have not reached yet."""
        if not self.alive or self.group is None or self.number in self.group.away or self.mode == self.waiting:
            return False
        if self.called > self.generation or self.mode not in (self.going, self.reducing):
            return False
        brought = self.group.sums.get(self.position.steps, {})
        return len(brought) < len(self.group.members) and not self.group.away - set(brought)

    def interrupted(self) -> Iterator[Callable[[], None]]:
        """Yield the reaction to a newer generation, or to a member that is away."""
        if self.called > self.generation or (self.mode == self.entering and self.generation in self.shut):
            yield self.drop
        elif self.mode != self.entering and self.group is not None and self.group.away:
            yield self.lose_peers

    def met(self) -> bool:
        """Whether the worker waits for its peers."""
        return self.mode in (self.meeting, self.copying, self.reducing)

    def drop(self) -> None:
        if self.group is not None:
            self.group.away.add(self.number)
        self.group, self.mode = None, self.waiting

    def lose_peers(self) -> None:
        self.drop()
        self.says.append(Broken(self.number, self.generation))

    def entering(self) -> Iterator[Callable[[], None]]:
        def join() -> None:
            self.old = self.group
            del self.found[self.generation]
            self.group = self.world.group(self.generation, *self.proposals[self.generation])
            self.group.positions[self.number] = self.position, self.content
            self.mode = self.meeting

        yield from self.interrupted()
        if self.connected(self.generation):
            yield join

    def meeting(self) -> Iterator[Callable[[], None]]:
        group = self.group
        assert group is not None

        def come_out() -> None:
            self.world.met(group)
            if self.old is not None:
                self.old.away.add(self.number)
            if self.number in group.holders():
                group.sent = self.position, self.content
                self.arrive()
            else:
                self.mode = self.copying

        yield from self.interrupted()
        if len(group.positions) == len(group.members):
            yield come_out

    def copying(self) -> Iterator[Callable[[], None]]:
        group = self.group
        assert group is not None

        def copy() -> None:
            assert group.sent is not None
            self.position, self.content = group.sent
            self.arrive()

        yield from self.interrupted()
        if group.sent is not None:
            yield copy

    def arrive(self) -> None:
        self.says.append(Entered(self.number, self.generation, self.position.steps))
        self.fresh, self.entered, self.mode = True, True, self.going

    def going(self) -> Iterator[Callable[[], None]]:
        """Yield the next move that the position requires: callbacks, a step, or the boundary."""
        plan = self.world.plan
        applied, stage = self.position
        epoch, within = divmod(applied, plan.steps_per_epoch)
        if within or stage == EpochStage.BEGUN:
            yield from self.interrupted()
            yield lambda: self.compute(plan, applied)
        elif stage in (EpochStage.ENDED, EpochStage.TOLD):
            yield lambda: self.report(plan, epoch - 1)
        elif applied == 0:
            yield lambda: self.begin(0)
        else:
            yield self.end

    def begin(self, epoch: int) -> None:
        self.position, self.content = self.position.at(EpochStage.BEGUN), mix("begin", epoch, self.content)
        self.mode = self.going

    def end(self) -> None:
        self.position, self.content = self.position.at(EpochStage.ENDED), mix(self.content, "end")

    def compute(self, plan: StepPlan, step: int) -> None:
        assert self.group is not None
        shards = self.shards(plan, step)
        results = tuple(computed(plan, self.content, step, shard) for shard in shards)
        self.says.append(Stepped(self.number, step, results, 0.1))
        self.group.sums.setdefault(step, {})[self.number] = self.word, shards, self.content
        self.mode = self.reducing

    def shards(self, plan: StepPlan, step: int) -> tuple[int, ...]:
        """Return the shards of this worker.

        Only members that had the state before compute in the first step after a switch.
        """
        group = self.group
        assert group is not None
        counts = dict(zip(group.members, group.counts, strict=True))
        if self.fresh:
            holders = group.holders()
            counts = dict(zip(holders, even(plan.shards, len(holders)), strict=True))
        self.fresh = False
        first = sum(counts.get(m, 0) for m in group.members[: group.members.index(self.number)])
        last = min(first + counts.get(self.number, 0), plan.active_shards(step % plan.steps_per_epoch))
        return tuple(range(first, last))

    def reducing(self) -> Iterator[Callable[[], None]]:
        group, plan, step = self.group, self.world.plan, self.position.steps
        assert group is not None
        brought = group.sums[step]

        def apply() -> None:
            words, shards, states = zip(*brought.values(), strict=True)
            assert set(states) == {self.content}, "members computed a step from different states"
            within = step % plan.steps_per_epoch
            assert sorted(s for part in shards for s in part) == list(range(plan.active_shards(within)))
            self.position, self.content = Position(step + 1), mix(self.content, step)
            if self.entered:
                self.says.append(Applied(self.number, step + 1))
            self.entered = False
            self.world.maybe_keep(self)
            self.mode = self.going
            if min(words) == max(words) > self.generation:
                self.enter(min(words))

        yield from self.interrupted()
        if len(brought) == len(group.members):
            yield apply

    def report(self, plan: StepPlan, epoch: int) -> None:
        assert self.group is not None
        is_told = self.position.stage == EpochStage.TOLD
        saves = is_told and epoch + 1 == plan.epochs and self.number == self.group.members[0]
        if saves:
            self.world.save(self, "artifacts", self.content)
        stop = is_told and epoch == self.world.undisturbed.stop_after
        data, values = self.world.data_of(self.number, epoch), self.world.told_last(self.position)
        self.says.append(AtBoundary(self.number, epoch, saves, data, is_told, stop, values))
        self.mode = lambda: self.at_boundary(epoch)

    def at_boundary(self, epoch: int) -> Iterator[Callable[[], None]]:
        def take() -> None:
            message, blob = self.orders.popleft()
            match message["op"]:
                case "save" | "state" | "test" | "artifacts":
                    assert message["boundary"] == epoch
                    self.mode = lambda: self.working(message, epoch)
                case "values" if message["epoch"] == epoch and self.position.stage == EpochStage.ENDED:
                    assert message["values"] == self.world.undisturbed.values[epoch]
                    self.position = self.position.at(EpochStage.TOLD)
                    self.content = told(epoch, message["values"], self.content)
                    self.report(self.world.plan, epoch)
                case "go" if message["epoch"] == epoch:
                    assert self.position.stage == EpochStage.TOLD
                    self.begin(epoch + 1)
                case "finish":
                    assert self.position.stage == EpochStage.TOLD
                    self.mode = lambda: self.finishing(message["writer"])
                case "go" | "values":
                    pass
                case "enter" if message["generation"] > self.generation:
                    self.obey(message, blob)
                case op:
                    assert op in ("bye", "keep", "enter"), f"unexpected order at a boundary: {op}"
                    self.obey(message, blob)

        def forget() -> None:
            """Drop tasks that the worker had not begun when a newer generation began."""
            self.orders = deque(order for order in self.orders if order[0]["op"] in ("enter", "bye", "keep"))

        if self.orders:
            yield take
        droppable = ("save", "state", "test", "values", "go")
        if self.called > self.generation and any(order[0]["op"] in droppable for order in self.orders):
            yield forget

    def working(self, task: dict[str, Any], epoch: int) -> Iterator[Callable[[], None]]:
        def do() -> None:
            results: tuple[BatchResult, ...] = ()
            if task["op"] == "test":
                results = tuple(validated(self.content, batch) for batch in range(task["first"], task["last"]))
            else:
                names = {"save": task.get("name"), "state": str(task.get("names"))}
                name = (task["op"], task["epoch"], names[task["op"]]) if task["op"] in names else "artifacts"
                self.world.save(self, name, self.content)
            self.says.append(TaskDone(self.number, results))
            self.mode = lambda: self.at_boundary(epoch)

        yield do

    def finishing(self, writer: int) -> Iterator[Callable[[], None]]:
        def finish() -> None:
            state = repr(self.content).encode() if writer == self.number else b""
            self.says.append(Finished(self.number, state))
            self.mode = self.waiting

        yield finish
