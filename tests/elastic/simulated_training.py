"""The computations of simulated workers, and the results of a training without disturbances. States are checksums."""

from __future__ import annotations

from dataclasses import dataclass, field
from zlib import crc32

from local_backend.elastic.hub import hub
from local_backend.elastic.hub.events import BatchResult
from local_backend.elastic.hub.watching import Totals, Values, validation_values
from local_backend.elastic.plan import StepPlan


def mix(*values: object) -> int:
    return crc32(repr(values).encode())


def computed(plan: StepPlan, state: int, step: int, shard: int) -> BatchResult:
    """Return the result of computing a shard from a state."""
    size = plan.size_of_shard(step % plan.steps_per_epoch, shard)
    return BatchResult(shard, size, float(mix(state, step, shard)), mix(state, shard) % (size + 1))


def validated(state: int, batch: int) -> BatchResult:
    return BatchResult(batch, 2, float(mix(state, "test", batch)), mix(state, batch) % 3)


def told(epoch: int, values: Values, state: int) -> int:
    """Return the state after a member received the values of an epoch."""
    return mix("told", epoch, sorted(values.items()), state)


@dataclass
class Undisturbed:
    """The results of a training without disturbances."""

    plan: StepPlan
    course: hub.Course
    test_batches: int
    #: The epoch after which a callback stops training.
    stop_after: int | None = None
    commits: list[tuple[int, int, tuple[BatchResult, ...]]] = field(default_factory=list)
    validations: list[tuple[int, tuple[BatchResult, ...]]] = field(default_factory=list)
    files: dict[object, int] = field(default_factory=dict)
    final: bytes = b""

    def __post_init__(self) -> None:
        plan, course, state = self.plan, self.course, mix("begin", 0, 0)
        seen: list[Values] = []
        for epoch in range(plan.epochs):
            totals = Totals()
            for step in range(plan.steps_per_epoch):
                done = epoch * plan.steps_per_epoch + step
                results = tuple(computed(plan, state, done, shard) for shard in range(plan.active_shards(step)))
                self.commits.append((epoch, step, results))
                totals = totals.add(results)
                state = mix(state, done)
            state, tested = mix(state, "end"), ()
            final, checkpoint = epoch + 1 == plan.epochs, course.checkpoint_freq
            if final or (checkpoint and (epoch + 1) % checkpoint == 0):
                self.files["save", epoch + 1, "final" if final else str(epoch + 1)] = state
            if self.test_batches and course.validation_freq and (epoch + 1) % course.validation_freq == 0:
                tested = tuple(validated(state, batch) for batch in range(self.test_batches))
                self.validations.append((epoch, tested))
            seen.append({**totals.values(), **validation_values(tested)})
            state = told(epoch, seen[-1], state)
            early = not final and bool(epoch == self.stop_after or course.watch.stops(seen, self.validates))
            best = course.watch.is_best(seen, self.validates)
            saved = ["final"] * early + ["best"] * best
            self.files.update({("save", epoch + 1, name): state for name in saved})
            checkpoints = bool(checkpoint) and (epoch + 1) % checkpoint == 0
            saved += ["final"] * final + [str(epoch + 1)] * (checkpoints and not final)
            if saved:
                self.files["state", epoch + 1, str(saved)] = state
            if early:
                break
            if not final:
                state = mix("begin", epoch + 1, state)
        self.values = dict(enumerate(seen))
        self.files["artifacts"] = state
        self.final = repr(state).encode()

    @property
    def validates(self) -> bool:
        """Whether at least one epoch is validated."""
        return self.test_batches > 0 and 0 < self.course.validation_freq <= self.plan.epochs
