"""The computations of a worker: shards of a step, validation batches, and calls of the user's functions."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch

from local_backend.elastic import faults
from local_backend.elastic.collective.group import Interrupted, WorkerGroup
from local_backend.elastic.collective.layout import Layout
from local_backend.elastic.collective.local_sgd import LocalSteps, Window
from local_backend.elastic.collective.reduce import Reducer, ReducerStep, make_reducer
from local_backend.elastic.data import seeding
from local_backend.elastic.data.loading import VALIDATION, Loader, Stream, count_correct, keys_of, to_device
from local_backend.elastic.data.seeding import seed_everything
from local_backend.elastic.data.streams import StreamedSamples
from local_backend.elastic.errors import GroupBroken
from local_backend.elastic.hub.events import BatchResult, mean_loss, mean_metrics, results_to_wire
from local_backend.elastic.plan import Range, StepPlan, batches, derive_seed, split
from local_backend.elastic.script.calling import compute, one_number
from local_backend.elastic.script.hooks import call_step_hooks, has_step_hooks
from local_backend.elastic.script.job import TrainingJob
from local_backend.elastic.script.schedules import Schedules
from local_backend.elastic.script.whole import WholeSet, by_name, is_whole_set
from local_backend.elastic.state.fingerprints import digest, of_tensors
from local_backend.elastic.state.live import Live
from local_backend.elastic.state.transfer import Sending
from local_backend.elastic.worker.control import ControlThread, Link
from local_backend.elastic.worker.finishing import Finisher, StepGuard, make_step
from local_backend.elastic.worker.single_samples import explained
from local_backend.elastic.worker.strays import Computed, Drift, Strays, compare_again
from local_backend.elastic.worker.user_functions import UserFunctions, number, one_value

#: Stands in place of a shard number for the batch that all members compute.
COMMON = -1


@dataclass(frozen=True)
class Turn:
    """The name of one optimizer's phase ("" for a single optimizer), and the objects that make its steps."""

    name: str
    layout: Layout
    finisher: Finisher
    reducer: Reducer


class Trainer:
    """Computes this worker's part of steps and validations, on one device."""

    def __init__(
        self,
        job: TrainingJob,
        plan: StepPlan,
        stream: Stream,
        device: torch.device,
        *,
        mode: str,
        window: Window | None,
        link: Link,
        control: ControlThread,
    ) -> None:
        """`window`: only in asynchronous mode, where a step of the plan is a window; None in the other modes."""
        self.job = job
        self.plan = plan
        self.device = device
        self.dataset = stream.dataset
        self._stream = stream
        self._mode = mode
        job.outer = None  # an earlier training in this process may have set it
        self._guard = StepGuard()
        #: The dtype of autocast for forward and loss; None without autocast.
        self._autocast = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(job.recipe.precision)
        self._local = None if window is None else LocalSteps(job, window, plan.shards)
        self._link = link
        self._control = control
        self._named_metrics = by_name(job.metrics)
        self._user = UserFunctions(job, plan, stream.dataset)
        self._group: WorkerGroup | None = None
        self._ranges: tuple[Range, ...] = ((0, plan.shards),)
        #: Ranges of the first step in a generation, if new members do not compute it; else None.
        self._first_ranges: tuple[Range, ...] | None = None
        self._sending: Sending | None = None
        self._seconds = 0.0
        #: The step that is being summed; None between steps. It changes the live buffers.
        self._summing: ReducerStep | None = None
        self._schedules = Schedules(job)
        self._schedules.check_length(plan.steps // plan.phases)
        self._strict = job.recipe.check == "strict"
        self._strays = Strays(job, self._strict)
        #: Values that batches have changed in the user's objects.
        own = not job.loader_threads and not isinstance(stream.dataset, StreamedSamples)
        self.drift = Drift(job, self._strays, (stream.dataset,) if own else ())
        #: Whether callbacks have hooks of steps.
        self._hooked = has_step_hooks(job.callbacks)
        #: (applied steps after its step, result) of the last batch that all members have computed.
        self.common: tuple[int, Computed] | None = None
        self._turns = self._lay_out()
        self.layout = self._turns[0].layout

    @property
    def committed(self) -> Any:
        """Pairs (live buffer, its value in the state) for the buffers that shards overwrite."""
        return self.layout.committed

    def relayout(self) -> None:
        """Create the layouts anew, because callbacks may have frozen parameters."""
        for parameter in Live(self.job).parameters:
            # A parameter that is frozen now must not keep its last gradient.
            parameter.grad = None
        self._turns = self._lay_out()
        self.layout = self._turns[0].layout
        self._strays.renew()

    def _lay_out(self) -> list[Turn]:
        """Return the turns of all optimizers, for this generation and the parameters that are trained now."""
        job, turns = self.job, []
        buffers = None
        for at, (name, optimizer) in enumerate(job.optimizers.items(), 1):
            layout = Layout(
                job.modules, optimizer, shards=self.plan.shards, rules=job.recipe.buffers, free=job.recipe.local_state,
                buffers=buffers, alone=not job.phases, measuring=self._hooked and self._local is None,
            )
            buffers = layout.buffers
            finisher = Finisher(job, optimizer, layout.parameters, last=at == len(job.optimizers))
            reducer = make_reducer(self._mode, layout, self._group, self._local)
            turns.append(Turn(name, layout, finisher, reducer))
        return turns

    def guarded(self) -> AbstractContextManager[None]:
        """Return a context in which user code that computes a batch cannot make steps."""
        return self._guard.installed()

    def join(
        self, group: WorkerGroup, counts: Sequence[int], holders: tuple[int, ...] | None, sending: Sending | None
    ) -> None:
        """Take this worker's part in a generation from now on. Only `holders` compute the next step; None for all."""
        self._group, self._sending, self._seconds = group, sending, 0.0
        ends = list(itertools.accumulate(counts))
        self._ranges = tuple(zip([0, *ends[:-1]], ends, strict=True))
        self._first_ranges = None
        if holders is not None:
            parts = iter(split(self.plan.shards, len(holders)))
            self._first_ranges = tuple(next(parts) if rank in holders else (0, 0) for rank in range(group.size))
        self.relayout()

    @property
    def overlaps(self) -> bool:
        """Whether the state may be sent while a step is computed: it must not change before the step is applied.

        In asynchronous mode the state changes earlier.
        """
        return self._local is None

    def shards_of(self, step: int, first: bool) -> range:
        """Return the shards of this worker in a step of an epoch. `first`: the step is the first in the generation."""
        assert self._group is not None
        ranges = self._first_ranges if first and self._first_ranges is not None else self._ranges
        return range(*shares(ranges, self.plan.shards, self.plan.active_shards(step))[self._group.rank])

    def break_off(self) -> None:
        """Undo an unfinished step after the death of a member. Ignore whether new members received the state."""
        with suppress(GroupBroken, Interrupted):
            self._finish_sending()
        if self._summing is not None:
            self._summing.undo()
            self._summing = None

    def _finish_sending(self) -> None:
        """Wait until new members have received the state, because it must not change before."""
        sending, self._sending = self._sending, None
        if sending is not None:
            sending.join()

    def step(self, epoch: int, step: int, word: int) -> tuple[list[BatchResult], list[int]]:
        """Train one step of an epoch. Return (results of this worker's shards, words of all members).

        Raises GroupBroken and Interrupted. After `break_off`, parameters, buffers and optimizer are then as before the
        step.
        """
        assert self._group is not None
        plan, control, turn = self.plan, self._control, self._turn(step)
        active = plan.active_shards(step)
        ranges = shares(self._first_ranges or self._ranges, plan.shards, active)
        shards = range(*ranges[self._group.rank])
        control.phase = "computing"
        began = time.perf_counter()
        summing = self._summing = turn.reducer.begin_step(ranges, active, shards)
        results: list[BatchResult] = []
        report = functools.partial(self._report, epoch, step, results)
        for shard in shards:
            if control.called_away(self._group.generation):
                raise Interrupted("the hub interrupted this generation")
            self._compute_shard(summing, epoch, step, shard, results, report if shard == shards[-1] else None)
        if self.job.fn_step_train is not None or not shards:
            report()
        self._seconds = time.perf_counter() - began
        self._compute_common(epoch, step, turn)
        self._finish_sending()
        control.phase = "waiting"
        words = summing.finish(word)
        self._summing = None
        # From here on all work is local. Nothing outside this process can make it fail halfway.
        control.phase = "applying"
        faults.at("mid-apply")
        self._apply(epoch, step, turn)
        self._first_ranges = None
        return results, words

    def _compute_shard(  # noqa: PLR0917
        self, summing: ReducerStep, epoch: int, step: int, shard: int, results: list[BatchResult],
        report: Callable[[], None] | None,
    ) -> None:
        """Run forward and backward of one shard, add it to the step, and append its result to `results`.

        `report`: for the last shard, called between forward and backward.
        """
        turn, plan = self._turn(step), self.plan
        size, weight = plan.size_of_shard(step, shard), plan.weight(step, shard)
        batch = self._stream.take((epoch, step, shard))
        seed = plan.shard_seed(epoch, step, shard)
        marks = self._strays.before() if self._local is None else None
        if self._local is None:
            self.drift.begin()
        seed_everything(seed)
        summing.begin_shard(shard)
        with self._guard.up(), explained(plan, size):
            if self.job.fn_step_train is None:
                loss, result = self._forward(turn, shard, size, batch)
                results.append(result)
                if report is not None:
                    report()
                summing.backward(shard, loss, weight * turn.finisher.scale)
            else:
                results.append(self._step_by_user(shard, size, batch))
        turn.layout.measure(weight * results[-1].loss, results[-1].correct, size)
        summing.end_shard(shard, weight)
        looked = marks is not None and (self._strict or (epoch == 0 and step < plan.phases))
        compared = self._mode == "exact" and (looked or (plan.is_checked(epoch, step) and len(results) == 1))
        again = functools.partial(self._compute_again, turn, seed, size, batch)
        drawn = digest(seeding.capture()) if compared else ""
        if marks is not None:
            self._strays.after(marks, again)
        if compared:
            compare_again(Computed(results[-1].loss, drawn), again, self.drift.changed)

    def compares(self, epoch: int, step: int) -> bool:
        """Return whether all members compute the first batch of this step, and compare their results."""
        several = self._group is not None and self._group.size > 1
        streamed = isinstance(self.dataset, StreamedSamples)
        return several and self._mode == "exact" and not streamed and self.plan.is_checked(epoch, step)

    def _compute_common(self, epoch: int, step: int, turn: Turn) -> None:
        """Compute the first batch of the step if members compare it. They have equal parameters and random numbers."""
        self.common = None
        if self.compares(epoch, step):
            batch, plan = self._stream.take((epoch, step, COMMON)), self.plan
            with explained(plan, plan.size_of_shard(step, 0)):
                seed, size = plan.shard_seed(epoch, step, 0), plan.size_of_shard(step, 0)
                self.common = epoch * plan.steps_per_epoch + step + 1, self._compute_again(turn, seed, size, batch)

    def _compute_again(self, turn: Turn, seed: int, size: int, batch: Any) -> Computed:
        """Compute a shard once more. Drop its gradients and its changes of buffers."""
        seed_everything(seed)
        turn.layout.begin_shard()
        with self._guard.up():
            if self.job.fn_step_train is None:
                loss, result = self._forward(turn, 0, size, batch)
                loss.backward()
            else:
                result = self._step_by_user(0, size, batch)
        gradients = [parameter.grad for parameter in turn.layout.parameters if parameter.grad is not None]
        marks = of_tensors([gradient.to_dense() if gradient.is_sparse else gradient for gradient in gradients])
        computed = Computed(result.loss, digest(seeding.capture()), tuple(marks))
        turn.layout.begin_shard()
        return computed

    def _apply(self, epoch: int, step: int, turn: Turn) -> None:
        """Make the optimizer's step and the work that follows it, in the same way on every member."""
        done = epoch * self.plan.steps_per_epoch + step
        # The optimizer and its hooks may draw random numbers.
        seed_everything(derive_seed(self.plan.seed, 9, done))
        if self.job.outer is not None:
            self.job.outer.step()
        else:
            turn.finisher.finish(done + 1)
        # Hooks of the optimizer may have changed buffers.
        turn.layout.buffers.commit()
        logs = self._logs(turn) if self._hooked else {}
        if self.plan.phase(step) < self.plan.phases - 1:
            return
        self._schedules.after_step()
        if self._hooked:
            self._run_step_hooks("end", done // self.plan.phases, logs)
            if step + 1 < self.plan.steps_per_epoch:
                self.begin_step_hooks(done + 1)

    def begin_step_hooks(self, done: int) -> None:
        """Run the hooks of callbacks before step `done` of the plan.

        They run at the end of the step before, so that they belong to the same version of the state.
        """
        if self._hooked:
            self._run_step_hooks("begin", done // self.plan.phases, None)

    def _run_step_hooks(self, moment: str, done: int, logs: dict[str, float] | None) -> None:
        frozen = [parameter.requires_grad for parameter in Live(self.job).parameters]
        seed_everything(derive_seed(self.plan.seed, 10, done, moment == "end"))
        call_step_hooks(self.job.callbacks, moment, done, logs)
        self._stream.renew()
        self.layout.buffers.commit()
        if frozen != [parameter.requires_grad for parameter in Live(self.job).parameters]:
            self.relayout()

    def _logs(self, turn: Turn) -> dict[str, float]:
        """Return the values of the step, which are summed along with its gradients; {} in asynchronous mode."""
        if self._local is not None:
            return {}
        loss, right, known = turn.layout.measures
        if not turn.name:
            return {"loss": loss, **({"accuracy": right / known} if known else {})}
        # A member that joins between two phases needs the losses of the earlier phases.
        losses = self.job.carried.losses
        losses[turn.name] = loss
        return {"loss": sum(losses.values()) / len(losses), **{f"loss_{name}": losses[name] for name in losses}}

    def _turn(self, step: int) -> Turn:
        return self._turns[self.plan.phase(step)]

    def _report(self, epoch: int, step: int, results: list[BatchResult]) -> None:
        """Send the results of this worker's shards to the hub, before any member gets the gradients of all of them.

        So no death of a worker can lose the results of a step that some member has applied.
        """
        done = epoch * self.plan.steps_per_epoch + step
        self._link.send({"op": "step", "step": done, "results": results_to_wire(results), "seconds": self._seconds})

    def check_parameters(self, epoch: int) -> None:
        """Raise Nonfinite if a parameter is not finite at the end of an epoch and `on_nonfinite` is "stop"."""
        for turn in self._turns:
            turn.finisher.check_parameters((epoch + 1) * self.plan.steps_per_epoch)

    def compute_sample(self) -> None:
        """Run the model on a batch of one sample, in the present modes of its modules."""
        loader = Loader(self.dataset, self.plan.seed, self.job.fn_batch_collate)
        (batch,) = loader.load([keys_of(0, [0])])
        with torch.no_grad():
            if self.job.phases:
                self._loss_of_phase(self._turns[0].name, batch)
            else:
                self._compute(batch)

    def warm_up(self) -> None:
        """Compute two steps of one shard, without other members and without reports. The state changes."""
        reducer = make_reducer("exact", self.layout, None)
        # Use the first samples, because it takes long to compute the order of millions of samples.
        first = keys_of(0, range(min(self.plan.batch, len(self.dataset))))
        self._stream.plan(iter([(("warm", i), first) for i in range(2)]))
        self.training_mode()
        for i in range(2):
            batch = self._stream.take(("warm", i))
            summing = reducer.begin_step(((0, 1),), 1, range(1))
            summing.begin_shard(0)
            if self.job.fn_step_train is None:
                summing.backward(0, self._forward(self._turns[0], 0, 1, batch)[0], 1.0)
            else:
                self._step_by_user(0, 1, batch)
            summing.end_shard(0, 1.0)
            summing.finish(0)
            make_step(self.job.optimizer)

    def test(self, stream: Stream, first: int, last: int) -> list[BatchResult]:
        """Validate batches `first` to `last` (exclusive) of the test set. With a test function there is one batch.

        Buffers with rules begin each batch with the same values, and do not stay changed: each worker computes other
        batches.
        """
        self.evaluation_mode()
        self.layout.buffers.commit(thorough=True)
        with torch.no_grad():
            if self.job.fn_test is not None:
                return [self._test_by_user(stream)]
            whole = {name: metric for name, metric in self._named_metrics.items() if is_whole_set(metric)}
            parts = list(enumerate(batches(len(stream.dataset), self.plan.batch)))
            numbered = parts if whole else parts[first:last]
            stream.plan(iter([(("test", number), keys_of(VALIDATION, part)) for number, part in numbered]))
            if whole:
                return [self._test_whole(numbered, stream, whole)]
            return [self._test_batch(number, len(part), stream.take(("test", number))) for number, part in numbered]

    def training_mode(self) -> None:
        """Put all modules into training mode.

        Call this method once per epoch, before callbacks, which may put parts of the model into evaluation mode.
        """
        for module in self.job.modules:
            module.train()

    def evaluation_mode(self) -> None:
        """Put all modules into evaluation mode. Call this method when an epoch is over.

        Callbacks then export the model or compute with it as it is used after training. The exporter of older versions
        of torch sets evaluation mode by itself, the exporter of newer versions does not.
        """
        for module in self.job.modules:
            module.eval()

    def _forward(self, turn: Turn, shard: int, size: int, batch: Any) -> tuple[torch.Tensor, BatchResult]:
        """Return (loss for backward, result with the values of loss and metrics) of a shard."""
        if turn.name:
            loss = self._loss_of_phase(turn.name, batch)
            return loss, BatchResult(shard, size, number(loss), None, {f"loss_{turn.name}": number(loss)})
        outputs, labels, loss = self._compute(batch)
        with torch.no_grad():
            correct, metrics = count_correct(outputs, labels, size), self._metrics(outputs, labels)
        return loss, _result(shard, size, loss, correct, metrics)

    def _compute(self, batch: Any) -> tuple[Any, Any, torch.Tensor]:
        """Return (outputs, labels, loss) of a batch."""
        with self._computing():
            outputs, labels, loss = compute(self.job.model, self.job.loss_function, to_device(batch, self.device))
        # A half-precision loss is not precise enough to be multiplied by the weight of its shard.
        return outputs, labels, loss if self._autocast is None else loss.float()

    def _loss_of_phase(self, name: str, batch: Any) -> torch.Tensor:
        with self._computing():
            loss = one_number(self.job.loss_function[name](self.job.model, to_device(batch, self.device)))
        return loss if self._autocast is None else loss.float()

    def _computing(self) -> AbstractContextManager[Any]:
        """Return the context in which forward and loss run."""
        return nullcontext() if self._autocast is None else torch.autocast(self.device.type, self._autocast)

    def _step_by_user(self, shard: int, size: int, batch: Any) -> BatchResult:
        with self._computing():
            return self._user.step(shard, size, batch)

    def _metrics(self, outputs: Any, labels: Any) -> dict[str, Any]:
        return {
            name: one_value(metric, outputs, labels)
            for name, metric in self._named_metrics.items() if not is_whole_set(metric)
        }

    def _test_whole(self, numbered: list[tuple[int, range]], stream: Stream, metrics: dict[str, Any]) -> BatchResult:
        """Return one result for the test set, with the metrics that need all of it."""
        whole = WholeSet(metrics, self.device)
        results = tuple(
            self._test_batch(number, len(part), stream.take(("test", number)), whole) for number, part in numbered
        )
        known = [result.correct for result in results if result.correct is not None]
        correct = sum(known) if known else None
        values = whole.compute(mean_metrics(results))
        return BatchResult(0, sum(result.count for result in results), mean_loss(results), correct, values)

    def _test_batch(self, number_: int, count: int, batch: Any, whole: WholeSet | None = None) -> BatchResult:
        seed_everything(derive_seed(self.plan.seed, 3, number_))
        if self.job.phases:
            losses = {f"loss_{name}": number(self._loss_of_phase(name, batch)) for name in self.job.phases}
            self.layout.buffers.undo()
            return BatchResult(number_, count, sum(losses.values()) / len(losses), None, losses)
        outputs, labels, computed = self._compute(batch)
        loss = number(computed)
        if whole is not None:
            whole.update(outputs, labels)
        metrics = self._metrics(outputs, labels)
        result = _result(number_, count, loss, count_correct(outputs, labels, count), metrics)
        self.layout.buffers.undo()
        return result

    def _test_by_user(self, stream: Stream) -> BatchResult:
        seed_everything(derive_seed(self.plan.seed, 3, 0))
        with self._computing():
            result = self._user.test(stream.dataset)
        self.layout.buffers.undo()
        return result


def shares(ranges: Sequence[Range], shards: int, active: int) -> tuple[Range, ...]:
    """Return the ranges of all members, in the same proportions, if only `active` of `shards` shards have samples."""
    return tuple((first * active // shards, last * active // shards) for first, last in ranges)


def _result(shard: int, size: int, loss: Any, correct: torch.Tensor | None, metrics: dict[str, Any]) -> BatchResult:
    """Return the result of a shard as Python numbers. Waits for a GPU."""
    values = {name: number(value) for name, value in metrics.items()}
    return BatchResult(shard, size, number(loss), None if correct is None else int(correct), values)
