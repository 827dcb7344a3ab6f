"""What simulated workers compute, and what a training gives that nothing happens to. States are checksums."""

from __future__ import annotations

from dataclasses import dataclass, field
from zlib import crc32

from local_backend.elastic import hub
from local_backend.elastic.events import BatchResult, accuracy
from local_backend.elastic.plan import Plan

#: Stages of a version.
ENDED, BEGUN = 1, 2


def mix(*values: object) -> int:
    return crc32(repr(values).encode())


def computed(plan: Plan, state: int, step: int, shard: int) -> BatchResult:
    """What computing a shard from a state gives."""
    size = plan.size_of_shard(step % plan.steps_per_epoch, shard)
    return BatchResult(shard, size, float(mix(state, step, shard)), mix(state, shard) % (size + 1))


def validated(state: int, batch: int) -> BatchResult:
    return BatchResult(batch, 2, float(mix(state, "test", batch)), mix(state, batch) % 3)


@dataclass
class Undisturbed:
    """What a training gives that nothing happens to."""

    plan: Plan
    course: hub.Course
    test_batches: int
    commits: list[tuple[int, int, tuple[BatchResult, ...]]] = field(default_factory=list)
    validations: list[tuple[int, tuple[BatchResult, ...]]] = field(default_factory=list)
    files: dict[object, int] = field(default_factory=dict)
    final: bytes = b""

    def __post_init__(self) -> None:
        plan, course, state = self.plan, self.course, mix("begin", 0, None, 0)
        for epoch in range(plan.epochs):
            for step in range(plan.steps_per_epoch):
                done = epoch * plan.steps_per_epoch + step
                results = tuple(computed(plan, state, done, shard) for shard in range(plan.active_shards(step)))
                self.commits.append((epoch, step, results))
                state = mix(state, done)
            state, tested = mix(state, "end"), ()
            if epoch + 1 == plan.epochs or (course.checkpoint_freq and (epoch + 1) % course.checkpoint_freq == 0):
                self.files["save", epoch + 1] = state
            if self.test_batches and course.validation_freq and (epoch + 1) % course.validation_freq == 0:
                tested = tuple(validated(state, batch) for batch in range(self.test_batches))
                self.validations.append((epoch, tested))
            if epoch + 1 < plan.epochs:
                state = mix("begin", epoch + 1, accuracy(tested), state)
        self.files["artifacts"] = state
        self.final = repr(state).encode()
