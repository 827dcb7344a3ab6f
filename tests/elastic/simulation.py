"""A whole job without processes: the hub, simulated workers, and a world that decides in random order who moves next,
when a message arrives, and what goes wrong."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from simulated_training import Undisturbed
from simulated_worker import Group, Worker

from local_backend.elastic.hub import hub
from local_backend.elastic.hub.events import (
    Action,
    Allocated,
    Begin,
    Closed,
    Commit,
    End,
    Event,
    Fail,
    Gone,
    Hung,
    Impatient,
    Kept,
    Kill,
    Lost,
    Note,
    Send,
    Spawn,
    Stopped,
    Switched,
    Unbalanced,
    Validated,
)
from local_backend.elastic.hub.liveness import Liveness
from local_backend.elastic.hub.membership import Stage
from local_backend.elastic.hub.watching import Values
from local_backend.elastic.plan import StepPlan
from local_backend.elastic.position import EpochStage, Position

T = TypeVar("T")
ALL_SLOTS = ("a", "b", "c", "d", "e", "f")
#: Seconds of a move.
MOVE = 1e-5


@dataclass(frozen=True)
class Weather:
    """How often things go wrong: chances per move, and how many faults there are at most."""

    death: float = 0.0
    massacre: float = 0.0
    hang: float = 0.0
    blame: float = 0.0
    resize: float = 0.0
    evict: float = 0.0
    no_start: float = 0.0
    #: Slots on which no worker can be started.
    bad: tuple[str, ...] = ()
    #: A death or a break in a delicate moment: while workers enter, switch, are parked or bring the final state.
    spite: float = 0.0
    #: Something that a worker said is heard again when the hub knows it to be lost.
    echo: float = 0.0
    #: A connection between workers breaks, and nobody dies.
    flake: float = 0.0
    snapshot: float = 0.1
    faults: int = 10**6


#: Kinds of misfortune.
WEATHERS = {
    "calm": Weather(),
    "slots that come and go": Weather(resize=0.02),
    "deaths": Weather(death=0.003),
    "deaths in delicate moments": Weather(spite=0.03, resize=0.01, faults=8),
    "broken connections": Weather(flake=0.004, death=0.001, resize=0.01),
    "no slots": Weather(evict=0.01, resize=0.003, spite=0.02, flake=0.0005, faults=12),
    "hangs": Weather(hang=0.002, resize=0.01),
    "late messages": Weather(echo=0.03, death=0.003, massacre=0.0005, resize=0.01, spite=0.005),
    "everything": Weather(
        death=0.002, massacre=0.0004, hang=0.001, blame=0.0007, flake=0.001, spite=0.01, resize=0.01, no_start=0.03,
        faults=15,
    ),
    "storm": Weather(death=0.01, massacre=0.001, hang=0.003, blame=0.003, resize=0.03, no_start=0.1, faults=40),
}


class World:
    """One job. `run` carries it to its end."""

    def __init__(
        self,
        course: hub.Course,
        seed: int,
        weather: Weather = Weather(),
        *,
        slots: int = 3,
        samples: int = 37,
        test_batches: int = 5,
        after: World | None = None,
        data_of: Callable[[int, int], dict[str, str]] = lambda worker, epoch: {},
        stop_after: int | None = None,
    ) -> None:
        """`after`: a world whose driver has died; this one has what that one wrote down."""
        self.random = random.Random(seed)
        #: (worker, epoch) → what it says about its data after the epoch.
        self.data_of = data_of
        self.samples, self.test_batches, self.weather = samples, test_batches, weather
        self.plan = StepPlan(samples, course.batch, course.step_samples, course.epochs, course.seed)
        self.undisturbed = Undisturbed(self.plan, course, test_batches, stop_after)
        past = after.state if after else hub.begin(course)
        self.state = hub.begin(
            course, past.kept, past.committed, past.epoch, values=past.values, totals=past.totals
        )
        self.workers: dict[int, Worker] = {}
        self.groups: dict[int, Group] = {}
        self.actions: list[Action] = []
        self.snapshots: dict[str, tuple[int, int]] = dict(after.snapshots) if after else {}
        self.files: dict[object, int] = dict(after.files) if after else {}
        self.writes: Counter[object] = Counter()
        #: Worker → how it ended, as long as the hub does not know.
        self.ended: dict[int, str] = {}
        self.doomed: set[int] = set()
        self.slots: tuple[str, ...] = ()
        self.faults = 0
        #: Moves before anything goes wrong.
        #: Seconds; moves take next to no time, so that only those are waited for that do not move.
        self.now = 0.0
        self.liveness = Liveness()
        self.calm = self.random.choice((0, 0, self.random.randrange(2000)))
        #: How fast workers and their connections are: some orders of events are rare with equal ones.
        self.pace: dict[int, float] = {}
        #: Restores are carried out even by workers that are further than the snapshot.
        self.careless = self.random.random() < 0.3
        #: Workers that the hub learned to be lost since the last commit, and breaks without a death.
        self.losses: set[int] = set()
        #: Generation → steps in the newest snapshot when it was made.
        self.kept_at: dict[int, int] = {}
        #: All that was heard of each worker.
        self.said: dict[int, list[Event]] = {}
        #: Workers that the hub knows to be lost.
        self.removed: set[int] = set()
        self.committed, self.switched_at = past.committed, 0
        self.allocate(ALL_SLOTS[:slots])

    # --- what workers do to the world

    def group(self, number: int, members: tuple[int, ...], counts: tuple[int, ...]) -> Group:
        if number not in self.groups:
            away = {m for m in members if not self.workers[m].alive or number in self.workers[m].shut}
            self.groups[number] = Group(members, counts, away)
        found = self.groups[number]
        assert (found.members, found.counts) == (members, counts)
        return found

    def met(self, group: Group) -> None:
        """All members of a generation have met: no older one may get on."""
        for worker in self.workers.values():
            if worker.number not in group.members and worker.number not in self.removed:
                assert not worker.could_step(), f"{worker.number} still trains in generation {worker.generation}"

    def die(self, worker: Worker, how: str) -> None:
        """The process ends; what it said arrives, then the end of its connection and of itself, in any order."""
        worker.alive = False
        for group in self.groups.values():
            if worker.number in group.members:
                group.away.add(worker.number)
        worker.says.append(Lost(worker.number))
        self.ended[worker.number] = how
        self.doomed.discard(worker.number)

    def keep(self, worker: Worker) -> None:
        path = f"{worker.position}-{worker.content}"
        self.snapshots[path] = worker.position, worker.content
        where = {"path": path} if self.random.random() < 0.8 else {"blob": path.encode()}
        worker.says.append(Kept(worker.number, worker.position, **where))

    def maybe_keep(self, worker: Worker) -> None:
        if self.random.random() < self.weather.snapshot:
            self.keep(worker)

    def load(self, path: str, blob: bytes) -> tuple[Position, int]:
        return self.snapshots[path or blob.decode()]

    def told_last(self, position: Position) -> Values:
        """The values that a state at this position was told last."""
        applied, stage = position
        epochs = applied // self.plan.steps_per_epoch
        known = applied % self.plan.steps_per_epoch or stage in (EpochStage.TOLD, EpochStage.BEGUN)
        over = epochs if known else epochs - 1
        return self.undisturbed.values.get(over - 1, {})

    def save(self, worker: Worker, what: object, content: int) -> None:
        self.writes[what] += 1
        assert self.files.setdefault(what, content) == content, "a file differs from one of the same name"

    # --- the hub

    def feed(self, event: Event) -> None:
        before = self.state
        self.speaker = getattr(event, "worker", 0)
        self.said.setdefault(self.speaker, []).append(event)
        self.liveness.heard(event, self.now)
        if isinstance(event, (Lost, Gone)):
            self.losses.add(event.worker)
            self.removed.add(event.worker)
        self.state, actions = hub.step(before, event)
        assert self.state.committed >= before.committed
        for action in actions:
            self.do(action)
        if self.state.phase is not hub.Phase.ENDED:
            again, more = hub.arrange(self.state)
            assert (again, more) == (self.state, ()), "the rules do not bring about all they could at once"

    def look(self) -> None:
        """Have those found that hang. Nobody else may be accused."""
        for consequence in self.liveness.check(self.state, self.now):
            if isinstance(consequence, (Hung, Kill)):
                worker = self.workers[consequence.worker]
                assert worker.stopped or not worker.alive, f"accused without need: {consequence}"
            if isinstance(consequence, (Send, Kill)):
                self.do(consequence)
            else:
                self.feed(consequence)

    def do(self, action: Action) -> None:
        self.actions.append(action)
        match action:
            case Send():
                worker = self.workers[action.worker]
                known = action.worker in self.removed and action.message["op"] != "bye"
                assert not known, "a message for one that takes part no more"
                assert self.state.crew.peers[action.worker].stage is not Stage.STARTING, "it is not connected yet"
                if action.message["op"] == "bye" and self.state.phase is not hub.Phase.ENDED:
                    assert self.state.crew.peers[action.worker].stage is Stage.LEAVING, "a member is sent away"
                elif action.message["op"] == "prepare":
                    kept = self.state.kept
                    self.kept_at.setdefault(action.message["generation"], kept.position.steps if kept else 0)
                if worker.alive:
                    worker.mail.append((dict(action.message), action.attachment))
            case Spawn():
                self.spawn(action)
            case Kill():
                if self.workers[action.worker].alive:
                    self.doomed.add(action.worker)
            case Note() if ": parked" in action.text:
                kept = self.state.kept
                assert kept is not None
                assert kept.position >= self.workers[self.speaker].position, "an old state was kept"
            case Switched():
                assert action.step >= self.switched_at or not action.planned, "a switch lost steps"
                assert action.step >= min(self.switched_at, self.kept_at[action.generation]), "a snapshot was not used"
                self.switched_at = action.step
            case Commit():
                self.losses.clear()
                done = action.epoch * self.plan.steps_per_epoch + action.step
                assert self.undisturbed.commits[done] == (action.epoch, action.step, action.results)
                assert done == self.committed, "a step was committed twice or left out"
                self.committed += 1

    def spawn(self, action: Spawn) -> None:
        assert action.slot in self.slots
        assert action.worker not in self.workers
        there = [w for w in self.workers.values() if w.slot == action.slot and (w.alive or w.number in self.ended)]
        assert there == [], "two processes on a slot"
        worker = self.workers[action.worker] = Worker(self, action.worker, action.slot)
        self.pace[action.worker] = self.random.choice((0.05, 0.3, 1.0, 1.0))
        if action.slot in self.weather.bad or self.chance(self.weather.no_start):
            worker.alive = False
            self.ended[action.worker] = "could not be started"

    # --- what may happen next

    def run(self) -> None:
        """To the end, which is what it has to be."""
        self.until(lambda: False)
        self.check()

    def until(self, reached: Callable[[], object], most: int = 50_000) -> None:
        """Move until that is so, or nothing moves any more."""
        for _ in range(most):
            self.meddle()
            self.now += MOVE
            self.look()
            moves = self.moves()
            if reached():
                return
            if moves:
                self.pick(moves)()
            elif not self.unblock():
                return
        raise AssertionError(f"no end in sight: {self.state}")

    def moves(self) -> list[tuple[float, Callable[[], None]]]:
        found: list[tuple[float, Callable[[], None]]] = []
        for number, worker in self.workers.items():
            pace = self.pace[number]
            if worker.says:
                found.append((pace, lambda worker=worker: self.deliver(worker)))
            if number in self.ended and not [event for event in worker.says if not isinstance(event, Lost)]:
                found.append((0.3, lambda number=number: self.feed(Gone(number, self.ended.pop(number)))))
            if number in self.doomed:
                found.append((0.3, lambda worker=worker: self.die(worker, "was killed by signal 9")))
            if worker.alive and not worker.stopped:
                if worker.mail:
                    found.append((2 * pace, worker.hear))
                found.extend((pace, move) for move in worker.moves())
        return found

    def deliver(self, worker: Worker) -> None:
        self.feed(worker.says.popleft())

    def pick(self, moves: list[tuple[float, T]]) -> T:
        return self.random.choices([move for _, move in moves], [weight for weight, _ in moves])[0]

    def chance(self, probability: float) -> bool:
        """Whether a fault happens now."""
        if self.faults >= self.weather.faults or self.random.random() >= probability:
            return False
        self.faults += 1
        return True

    def meddle(self) -> None:
        """Things that may happen at any instant."""
        self.calm -= 1
        if self.state.phase is hub.Phase.ENDED or self.calm > 0:
            return
        weather, living = self.weather, [worker for worker in self.workers.values() if worker.alive]
        if living:
            self.hit(weather, living)
        if self.removed and self.chance(weather.echo):
            self.feed(self.random.choice(self.said[self.random.choice(sorted(self.removed))]))
        if self.slots and self.chance(weather.evict):
            self.allocate(())
        if self.chance(weather.resize):
            self.allocate(tuple(self.random.sample(ALL_SLOTS, self.random.choice((0, 1, 2, 3, 3, 4, 5, 6)))))
        members = self.state.members
        if members and self.random.random() < weather.resize:
            cuts = sorted(self.random.choices(range(self.plan.shards + 1), k=len(members) - 1))
            self.feed(Unbalanced(tuple(b - a for a, b in pairwise([0, *cuts, self.plan.shards]))))
        if self.random.random() < 0.002:
            self.feed(Impatient())

    def hit(self, weather: Weather, living: list[Worker]) -> None:
        """Things that happen to workers."""
        crew, victim = self.state.crew, self.random.choice(living)
        delicate = crew.entering or crew.confirmed or self.state.parking or self.state.phase is hub.Phase.FINISHING
        if self.chance(weather.death) or (delicate and self.chance(weather.spite)):
            self.die(victim, "was killed by signal 11")
        elif self.chance(weather.massacre):
            for worker in living:
                self.die(worker, "was killed by signal 9")
        elif self.chance(weather.hang):
            victim.stopped = True
        elif self.chance(weather.blame):
            self.feed(Hung(victim.number, "keeps the other workers waiting"))
        elif victim.group is not None and victim.met() and self.chance(weather.flake):
            victim.lose_peers()
            self.losses.add(-self.faults)

    def allocate(self, slots: tuple[str, ...]) -> None:
        self.slots = slots
        self.feed(Allocated(slots))

    def unblock(self) -> bool:
        """Nothing is on its way: what a clock or the scheduler brings. False when nothing ever will."""
        stuck = [w for w in self.workers.values() if w.alive and w.stopped and w.number not in self.doomed]
        if self.state.phase is hub.Phase.ENDED:
            for worker in stuck:
                self.die(worker, "was killed by signal 9")
            return bool(stuck)
        due = self.liveness.due(self.now)
        if due is not None and stuck:
            self.now = due
        elif not self.slots:
            self.allocate(ALL_SLOTS[:2])
        else:
            return False
        return True

    # --- what has to be true in the end

    def of(self, kind: type[T]) -> list[T]:
        return [action for action in self.actions if isinstance(action, kind)]

    def check(self) -> None:
        assert self.state.phase is hub.Phase.ENDED, f"a deadlock: {self.state}"
        (end,) = [action for action in self.actions if isinstance(action, (End, Fail))]
        expected = self.undisturbed
        if isinstance(end, Fail):
            if "without progress" in end.reason:
                assert len(self.losses) >= 3, "one death was counted twice"
            else:
                assert "on any slot" in end.reason, end.reason
                assert self.weather.no_start or self.losses
            return
        assert self.committed == len(expected.commits)
        assert {closed.epoch: closed.values for closed in self.of(Closed)}.items() <= expected.values.items()
        early = len(expected.values) < self.plan.epochs
        assert [stopped.epoch for stopped in self.of(Stopped)] == [len(expected.values) - 1] * early
        assert self.of(Begin) == [Begin(self.plan)]
        assert [(v.epoch, v.results) for v in self.of(Validated)] == expected.validations
        assert self.files == expected.files
        assert end.state == expected.final
        assert not [w.number for w in self.workers.values() if w.alive], "workers are left"
