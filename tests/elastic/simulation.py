"""A whole job without processes: the hub, simulated workers, and a world.

The world decides in random order which worker moves next, when a message arrives, and which faults happen.
"""

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
    Rested,
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
#: Simulated seconds per move.
MOVE = 1e-5


@dataclass(frozen=True)
class Weather:
    """The rates of faults: chances per move, and the maximum number of faults."""

    death: float = 0.0
    massacre: float = 0.0
    hang: float = 0.0
    blame: float = 0.0
    resize: float = 0.0
    evict: float = 0.0
    no_start: float = 0.0
    #: Slots on which no worker can be started.
    bad: tuple[str, ...] = ()
    #: A death or a break at a critical time: while workers enter, switch, are parked or send the final state.
    spite: float = 0.0
    #: An old message of a worker arrives again after the hub has learned of its loss.
    echo: float = 0.0
    #: A connection between workers breaks, and no worker dies.
    flake: float = 0.0
    snapshot: float = 0.1
    faults: int = 10**6


#: Kinds of faults.
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
    """One simulated job. `run` carries it to its end."""

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
        rests: tuple[int, ...] = (),
        hasty: float = 0.0,
    ) -> None:
        """Set up a job. `after`: a world whose driver has died; the new world continues from its records. `rests`:
        epochs after which the job rests; when nothing else moves, it is promoted or loses its slots. It is also
        promoted with the chance `hasty` before each move."""
        self.random = random.Random(seed)
        #: (worker, epoch) → the worker's report about its data after the epoch.
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
        #: Worker → the reason for its end, as long as the hub does not know it.
        self.ended: dict[int, str] = {}
        self.doomed: set[int] = set()
        self.slots: tuple[str, ...] = ()
        self.faults = 0
        #: Simulated seconds. Moves take almost no time, so only stopped workers become overdue.
        self.now = 0.0
        self.liveness = Liveness()
        #: Moves before the first fault.
        self.calm = self.random.choice((0, 0, self.random.randrange(2000)))
        #: Speed of workers and their connections: with equal speeds, some orders of events are rare.
        self.pace: dict[int, float] = {}
        #: Workers restore a snapshot even if their state is newer.
        self.careless = self.random.random() < 0.3
        #: Workers whose loss the hub has learned since the last commit, and breaks without a death.
        self.losses: set[int] = set()
        #: Generation → steps in the newest snapshot when the generation was made.
        self.kept_at: dict[int, int] = {}
        #: All events of each worker.
        self.said: dict[int, list[Event]] = {}
        #: Workers whose loss the hub knows.
        self.removed: set[int] = set()
        self.committed, self.switched_at = past.committed, 0
        self.rest, self.hasty = next(iter(rests), None), hasty
        self.rests = rests[1:]
        self.allocate(ALL_SLOTS[:slots])

    # --- effects of workers on the world

    def group(self, number: int, members: tuple[int, ...], counts: tuple[int, ...]) -> Group:
        if number not in self.groups:
            away = {m for m in members if not self.workers[m].alive or number in self.workers[m].shut}
            self.groups[number] = Group(members, counts, away)
        found = self.groups[number]
        assert (found.members, found.counts) == (members, counts)
        return found

    def met(self, group: Group) -> None:
        """Check, after all members of a generation have met, that no worker of an older generation can continue."""
        for worker in self.workers.values():
            if worker.number not in group.members and worker.number not in self.removed:
                assert not worker.could_step(), f"worker {worker.number} still trains in generation {worker.generation}"

    def die(self, worker: Worker, how: str) -> None:
        """End a process. Its messages arrive first, then the ends of connection and process, in any order."""
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
        """Return the values that a state at this position received last."""
        applied, stage = position
        epochs = applied // self.plan.steps_per_epoch
        known = applied % self.plan.steps_per_epoch or stage in (EpochStage.TOLD, EpochStage.BEGUN)
        over = epochs if known else epochs - 1
        return self.undisturbed.values.get(over - 1, {})

    def save(self, worker: Worker, what: object, content: int) -> None:
        self.writes[what] += 1
        assert self.files.setdefault(what, content) == content, f"the file {what} was written with different content"

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
            assert (again, more) == (self.state, ()), "the rules did not bring about all possible actions at once"

    def look(self) -> None:
        """Detect hung workers, and check that no other worker is accused."""
        for consequence in self.liveness.check(self.state, self.now):
            if isinstance(consequence, (Hung, Kill)):
                worker = self.workers[consequence.worker]
                assert worker.stopped or not worker.alive, f"a working worker was accused: {consequence}"
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
                assert not known, "the hub sent a message to a removed worker"
                assert self.state.crew.peers[action.worker].stage is not Stage.STARTING, (
                    "the hub sent a message to a worker that is not connected yet"
                )
                if action.message["op"] == "bye" and self.state.phase is not hub.Phase.ENDED:
                    assert self.state.crew.peers[action.worker].stage is Stage.LEAVING, "the hub sent a member away"
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
            case Rested():
                assert self.rest is not None and self.rest <= action.epochs < self.plan.epochs
                assert self.committed == action.epochs * self.plan.steps_per_epoch
                assert action.epochs - 1 in self.state.values
                kept, end = self.state.kept, Position(self.committed, EpochStage.TOLD)
                is_kept = kept is not None and kept.position == end
                assert is_kept if self.state.rested else self.state.gathered
            case Commit():
                assert self.rest is None or action.epoch < self.rest, "a job trained on while it was to rest"
                self.losses.clear()
                done = action.epoch * self.plan.steps_per_epoch + action.step
                assert self.undisturbed.commits[done] == (action.epoch, action.step, action.results)
                assert done == self.committed, "a step was committed twice or left out"
                self.committed += 1

    def spawn(self, action: Spawn) -> None:
        assert action.slot in self.slots
        assert action.worker not in self.workers
        there = [w for w in self.workers.values() if w.slot == action.slot and (w.alive or w.number in self.ended)]
        assert there == [], "two processes on one slot"
        worker = self.workers[action.worker] = Worker(self, action.worker, action.slot)
        self.pace[action.worker] = self.random.choice((0.05, 0.3, 1.0, 1.0))
        if action.slot in self.weather.bad or self.chance(self.weather.no_start):
            worker.alive = False
            self.ended[action.worker] = "could not be started"

    # --- possible next moves

    def run(self) -> None:
        """Run the job to its end and check the result."""
        self.until(lambda: False)
        self.check()

    def until(self, reached: Callable[[], object], most: int = 50_000) -> None:
        """Move until the condition holds, or until no move is possible."""
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
        raise AssertionError(f"the training does not end: {self.state}")

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
        """Decide whether a fault happens now."""
        if self.faults >= self.weather.faults or self.random.random() >= probability:
            return False
        self.faults += 1
        return True

    def meddle(self) -> None:
        """Cause the faults that may happen at any time."""
        self.calm -= 1
        if self.state.phase is hub.Phase.ENDED or self.calm > 0:
            return
        weather, living = self.weather, [worker for worker in self.workers.values() if worker.alive]
        if living:
            self.hit(weather, living)
        if self.removed and self.chance(weather.echo):
            self.feed(self.random.choice(self.said[self.random.choice(sorted(self.removed))]))
        if self.rest is not None and self.random.random() < self.hasty:
            self.promote()
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
        """Cause faults of workers."""
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
        self.feed(Allocated(slots, self.rest))

    def promote(self) -> None:
        self.rest, self.rests = next(iter(self.rests), None), self.rests[1:]
        self.allocate(self.slots or ALL_SLOTS[: self.random.choice((1, 2, 3))])

    def unblock(self) -> bool:
        """Do the next action of a clock or the scheduler when no message is on its way.

        Return False if there is none.
        """
        stuck = [w for w in self.workers.values() if w.alive and w.stopped and w.number not in self.doomed]
        if self.state.phase is hub.Phase.ENDED:
            for worker in stuck:
                self.die(worker, "was killed by signal 9")
            return bool(stuck)
        due = self.liveness.due(self.now)
        if due is not None and stuck:
            self.now = due
        elif self.state.resting and not self.state.rested and self.random.random() < 0.5:
            self.allocate(())
        elif self.state.resting:
            self.promote()
        elif not self.slots:
            self.allocate(ALL_SLOTS[:2])
        else:
            return False
        return True

    # --- required results

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
        assert not [w.number for w in self.workers.values() if w.alive], "workers are still alive"
