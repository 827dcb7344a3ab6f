"""One worker: its generations, epochs and boundaries.

Members of a generation compare their positions (`Position`) when they enter it. A member that is behind copies the
state of one that is ahead. Such a member is a newcomer, could not apply a step because of a death, or restarts from a
snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from local_backend.elastic import faults
from local_backend.elastic.collective.group import Interrupted, WorkerGroup
from local_backend.elastic.data.data_sets import SampledOrder
from local_backend.elastic.data.loading import Key, keys_of
from local_backend.elastic.data.seeding import seed_everything
from local_backend.elastic.errors import EngineError, GroupBroken, HubGone
from local_backend.elastic.frames import Message
from local_backend.elastic.hub.events import results_to_wire
from local_backend.elastic.plan import derive_seed
from local_backend.elastic.position import BEGINNING, EpochStage, Position
from local_backend.elastic.script.hooks import call, takes_logs
from local_backend.elastic.script.job import TrainingJob
from local_backend.elastic.script.surroundings import choose_device
from local_backend.elastic.state.disk import is_full
from local_backend.elastic.state.replica import from_bytes, result_of, to_bytes
from local_backend.elastic.state.snapshots import Snapshot, SnapshotFolder, Snapshotter
from local_backend.elastic.worker.agreement import Agreement, table_of
from local_backend.elastic.worker.control import ControlThread, Link, Order
from local_backend.elastic.worker.entry import enter
from local_backend.elastic.worker.journal import WorkerLog
from local_backend.elastic.worker.preparation import Prepared, Terms, prepare
from local_backend.elastic.worker.single_samples import check_single_samples
from local_backend.elastic.worker.structure import unchanged
from local_backend.elastic.worker.trainer import COMMON


class Member:
    """One worker, from its first generation to the final state of the training."""

    def __init__(  # noqa: PLR0917
        self, number: int, link: Link, control: ControlThread, job: TrainingJob, terms: Terms, prepared: Prepared
    ) -> None:
        self.plan = prepared.plan
        self._number = number
        self._link = link
        self._control = control
        self._job = job
        self._terms = terms
        self._journal = prepared.journal
        self._order_of = prepared.order_of
        self._sampled = prepared.sampled
        self._stream = prepared.stream
        self._probe = prepared.probe
        self._replica = prepared.replica
        self._trainer = prepared.trainer
        self._epoch_end = prepared.epoch_end
        self._agreement = Agreement(job, control, terms.mode)
        self._position = BEGINNING
        #: Takes snapshots; None until this worker is the first member.
        self._snapshotter: Snapshotter | None = None
        self._group: WorkerGroup | None = None
        self._generation = 0
        #: Workers of the generation, in order of rank; empty before the first generation.
        self._members: tuple[int, ...] = ()
        self._begun = False
        #: Whether the worker has applied no step yet in the generation that it entered.
        self._entered = False
        #: Whether all callbacks that this process told to save the user's artifacts have run; whether some have.
        self._saved = self._saves = False

    def run(self) -> None:
        """Take part until the hub ends the job. Raises exceptions of user code, EngineError and HubGone."""
        try:
            with self._trainer.guarded():
                self._serve()
        finally:
            self._drop_group()

    # --- generations

    def _serve(self) -> None:
        while True:
            self._control.phase = "waiting"
            order, blob = self._control.order("enter", "keep", "bye")
            while order["op"] != "bye":
                try:
                    order, blob = self._obey(order, blob)
                except (Interrupted, GroupBroken) as error:
                    self._trainer.break_off()
                    self._drop_group()
                    if isinstance(error, GroupBroken):
                        self._link.send({"op": "broken", "generation": self._generation})
                    break
            else:
                self._journal.end_training()
                return

    def _obey(self, order: Message, blob: bytes) -> Order:
        """Carry out an order of the hub. Return the next order."""
        if order["op"] == "keep":
            self._keep()
        elif self._enter(order["generation"], order["restore"], blob):
            return self._go_on()
        return self._control.order("enter", "keep", "bye")

    def _enter(self, number: int, restore: Message | None = None, blob: bytes = b"") -> bool:
        """Enter a generation. If this worker is not a member of it, tell the hub so and return False."""
        control = self._control
        control.phase = "entering"
        proposal = control.proposal(number)
        if self._number not in proposal.members:
            faults.at("leaving")
            self._link.send({"op": "left"})
            return False
        self._generation = number
        faults.at("forming")
        if restore is not None:
            self._restore(restore, blob)
        group = control.formation(number).result(lambda: control.called_away(number))
        control.taken(number)
        faults.at("entering")
        before, self._group = self._group, group
        entry = enter(group, self._position, self._replica, self._trainer, self._catch_up)
        # Only now have all members of the old group finished with it.
        if before is not None:
            before.drop()
        self._position = entry.position
        self._entered = True
        self._members = proposal.members
        self._trainer.join(group, proposal.counts, entry.holders, entry.sending)
        if self._sampled is not None and self._job.carried.order is not None:
            epoch, order = self._job.carried.order
            if self._sampled.copy(epoch, order.cpu().numpy()):
                self._stream.drop()
        self._stream.plan(self._wanted())
        self._link.send({"op": "entered", "generation": number, "applied": self._position.steps})
        self._greet(proposal.members)
        return True

    def _greet(self, members: tuple[int, ...]) -> None:
        journal = self._journal
        journal.members(self._generation, members)
        if not self._begun:
            self._begun = True
            journal.say(f"grad size {self._trainer.layout.gradient_size}")
            journal.say(f"epoch start, total epoch {self.plan.epochs}")
            journal.begin_training()

    def _restore(self, restore: Message, blob: bytes) -> None:
        """Load a kept state: from `blob`, or from the snapshot file if `blob` is empty."""
        path, position = Path(restore["path"]), Position.from_number(restore["version"])
        state = from_bytes(blob) if blob else Snapshot(path, position, {}).load()
        self._replica.restore(state, lambda callback: self._catch_up(callback, position))
        self._position = position

    def _catch_up(self, callback: Any, position: Position) -> None:
        """Run the missed hooks of a callback whose state cannot be copied to this process."""
        if not self._begun:
            call(callback, "on_train_begin")
            call(callback, "on_epoch_begin", position.steps // self.plan.steps_per_epoch)

    def _keep(self) -> None:
        """Keep the state because no worker will be left: in a file, or in the driver if the file cannot be written."""
        state = self._replica.copy(self._replica.capture())
        faults.at("keeping")
        message: Message = {"op": "kept", "version": self._position.number, "path": ""}
        blob = b""
        try:
            if self._terms.snapshots is None:
                raise OSError("the job has no folder for snapshots")
            message["path"] = str(SnapshotFolder(Path(self._terms.snapshots)).write(self._position, state))
        except OSError as error:
            self._journal.say(f"cannot write a snapshot, sending the state to the driver instead: {error}")
            blob = to_bytes(state)
        self._link.send(message, blob)

    def _drop_group(self) -> None:
        if self._group is not None:
            self._group.drop()
            self._group = None

    # --- epochs

    def _go_on(self) -> Order:
        """Train from the present position. Return the first order that the worker cannot follow in its generation."""
        steps = self.plan.steps_per_epoch
        while True:
            stage = self._position.stage
            epoch, within = divmod(self._position.steps, steps)
            if within or stage == EpochStage.BEGUN:
                order = self._train(epoch, within)
                if order is not None:
                    return order
            elif stage in (EpochStage.ENDED, EpochStage.TOLD):
                order = self._at_boundary(epoch - 1)
                if order[0]["op"] == "finish":
                    return self._finish(order[0]["writer"])
                if order[0]["op"] != "go":
                    return order
                self._begin_epoch(epoch)
            elif self._position.steps == 0:
                self._callbacks(0, "on_train_begin")
                # Start after 0 epochs, or after those of a checkpoint that has no training state.
                self._position = Position(self._terms.start * steps)
                self._begin_epoch(self._terms.start)
            else:
                self._end_epoch(epoch - 1)

    def _begin_epoch(self, epoch: int) -> None:
        self._trainer.training_mode()
        if self._stops:
            # A callback had ended the training of this state; the present training continues from it.
            self._job.model.stop_training = False  # type: ignore[assignment]
        self._callbacks(epoch, "on_epoch_begin", epoch)
        if self._sampled is not None:
            self._order(self._sampled, epoch)
        elif (samples := len(self._trainer.dataset)) != self.plan.samples:
            raise EngineError(
                f"the training set has {samples} samples in epoch {epoch}, but it had {self.plan.samples} before "
                "training: the number must be the same in all epochs. To add samples, call train() anew with the "
                "larger training set"
            )
        self._stream.renew()
        if epoch == 0:
            check_single_samples(self._job, self.plan, self._replica, self._trainer.compute_sample)
        self._position = self._position.at(EpochStage.BEGUN)
        # Callbacks may have frozen parameters.
        self._trainer.relayout()
        self._trainer.begin_step_hooks(epoch * self.plan.steps_per_epoch)

    def _order(self, orders: SampledOrder, epoch: int) -> None:
        """Let the sampler choose the order of an epoch, now that callbacks have changed it for this epoch."""
        if orders.begin(epoch):
            self._stream.drop()
            self._stream.plan(self._wanted())
        self._job.carried.order = epoch, torch.from_numpy(orders.of(epoch).copy())

    def _end_epoch(self, epoch: int) -> None:
        self._journal.say(f"<=== Epoch {epoch} End ==> ")
        self._trainer.check_parameters(epoch)
        self._trainer.evaluation_mode()
        is_last = epoch == self.plan.epochs - 1
        self._saves = is_last and self._terms.saves and self._number == self._members[0]
        self._callbacks(epoch, "on_epoch_end", epoch, save_model=self._saves, leave_out=takes_logs)
        self._position = self._position.at(EpochStage.ENDED)

    def _close_epoch(self, epoch: int, values: dict[str, float], monitor: str) -> None:
        """Do the work that depends on the values of the epoch."""
        faults.at("told")
        right = values.get("val_accuracy")
        if right is not None and self._number == self._members[0]:
            self._journal.say(f"epoch={epoch} validation_accuracy: {right:.4f}")
        self._epoch_end.close(self._callbacks, epoch, values, monitor, self._saves)
        self._saved, self._saves = self._saved or self._saves, False
        self._position = self._position.at(EpochStage.TOLD)

    def _callbacks(
        self, epoch: int, hook: str, *arguments: Any, leave_out: Callable[[Any], bool] | None = None, **optional: Any
    ) -> None:
        """Run a hook of the callbacks. Every worker runs them with the same random numbers, so replicas stay equal."""
        self._control.phase = "callbacks"
        seed_everything(derive_seed(self.plan.seed, 4, epoch))
        faults.at("callbacks")
        # After the training, a callback may change the model for its use.
        with nullcontext() if hook == "on_train_end" else unchanged(self._job):
            for callback in self._job.callbacks:
                if leave_out is None or not leave_out(callback):
                    call(callback, hook, *arguments, **optional)

    def _train(self, epoch: int, within: int) -> Order | None:
        """Train to the end of the epoch. Return an order if this worker has left its generation."""
        journal, plan = self._journal, self.plan
        if within == 0:
            journal.say(f"<=== Epoch {epoch} Begin ==> ")
            journal.begin_epoch()
        for step in range(within, plan.steps_per_epoch):
            done = epoch * plan.steps_per_epoch + step
            faults.now(done)
            results, words = self._trainer.step(epoch, step, self._control.word)
            self._position = Position(done + 1)
            self._say_applied(done + 1)
            self._agreement.after_step(self._group, self._members, done + 1)
            if done < self._terms.verify:
                message = {"op": "observed", "step": done, "members": len(self._members)}
                self._link.send(message, table_of(self._job).to_bytes())
            for result in results:
                counter = self._counter(epoch, step * plan.shards + result.number)
                journal.batch(result, epoch, counter, len(self._members))
            self._snapshot()
            agreed = min(words)
            if agreed > self._generation and agreed == max(words) and not self._enter(agreed):
                return self._control.order("enter", "keep", "bye")
        return None

    def _say_applied(self, steps: int) -> None:
        """Report applied steps to the hub, once per generation. So the hub commits the first step after a death without
        waiting for the next step."""
        if self._entered:
            self._entered = False
            self._link.send({"op": "applied", "steps": steps})

    def _counter(self, epoch: int, batch: int) -> int:
        """Return the batch counter as WMLA's server counts: 2, 3, ... over all batches of the job. The last batch of an
        epoch repeats the number of the batch before."""
        in_epoch = self.plan.batches_per_epoch
        return epoch * in_epoch + min(batch + 2, in_epoch)

    def _wanted(self) -> Iterator[tuple[tuple[int, int, int], list[Key]]]:
        """Yield this worker's batches from the present step to the end of training, with their sample keys."""
        plan, trainer = self.plan, self._trainer
        first = max(self._position.steps, self._terms.start * plan.steps_per_epoch)
        for epoch in range(first // plan.steps_per_epoch, plan.epochs):
            order = self._order_of(epoch)
            for step in range(max(0, first - epoch * plan.steps_per_epoch), plan.steps_per_epoch):
                done = epoch * plan.steps_per_epoch + step
                for shard in trainer.shards_of(step, done == first):
                    yield (epoch, step, shard), keys_of(epoch, plan.indices(epoch, step, shard, order))
                if trainer.compares(epoch, step):
                    yield (epoch, step, COMMON), keys_of(epoch, plan.indices(epoch, step, 0, order))

    def _snapshot(self) -> None:
        """Take a snapshot if one is due and this worker is the first member, in case all members die."""
        if self._terms.snapshots is None or self._number != self._members[0]:
            return
        if self._snapshotter is None:
            folder = SnapshotFolder(Path(self._terms.snapshots))
            self._snapshotter = Snapshotter(folder, self._kept, self._not_kept, self._terms.snapshot_seconds)
        if self._snapshotter.due(time.monotonic()):
            self._snapshotter.take(self._position, self._replica.capture())

    def _kept(self, position: Position, path: Path, seconds: float) -> None:
        """Tell the hub that a snapshot is on disk. The thread that wrote it calls this."""
        with suppress(HubGone):
            self._link.send({"op": "kept", "version": position.number, "path": str(path)})

    def _not_kept(self, why: str) -> None:
        """Report that a snapshot could not be written. The thread that tried it calls this."""
        self._journal.say(why)
        with suppress(HubGone):
            self._link.send({"op": "unkept", "why": why})

    # --- boundaries

    def _at_boundary(self, epoch: int) -> Order:
        """Carry out the hub's orders after an epoch. Return the order to go on, to finish, or to leave the boundary."""
        data = self._probe.of_epoch(epoch)
        self._control.phase = "waiting"
        faults.at("boundary")
        last = epoch == self.plan.epochs - 1
        self._agreement.at_boundary(
            self._group, self._members, self._position.steps, last, trainer=self._trainer, data=data,
        )
        self._report_boundary(epoch, data)
        while True:
            order, blob = self._control.order(
                "save", "state", "test", "artifacts", "values", "go", "finish", "enter", "keep", "bye"
            )
            match order["op"]:
                case "save":
                    # Disks and callbacks may take any time.
                    self._control.phase = "callbacks"
                    self._save(partial(self._epoch_end.save, order["epoch"], order["name"]), [order["name"]])
                case "state":
                    self._control.phase = "callbacks"
                    names = order["names"]
                    self._save(partial(self._epoch_end.save_state, names, self._position), names)
                case "artifacts":
                    self._control.phase = "callbacks"
                    self._epoch_end.save_artifacts(self._callbacks, epoch)
                    self._link.send({"op": "done"})
                case "test":
                    self._control.phase = "computing"
                    results = self._epoch_end.test(epoch, order["first"], order["last"], len(self._members))
                    self._link.send({"op": "done", "results": results_to_wire(results)})
                case "values" if order["epoch"] == epoch and self._position.stage == EpochStage.ENDED:
                    self._close_epoch(epoch, order["values"], order["monitor"])
                    self._report_boundary(epoch, data)
                case "values":
                    continue  # repeated for a worker that had reached that boundary twice
                case "go" if order["epoch"] < epoch:
                    continue
                case _:
                    return order, blob
            self._control.phase = "waiting"

    def _save(self, write: Callable[[], None], names: list[str]) -> None:
        """Write files of checkpoints. Training goes on without them on a full disk, but not at its end."""
        trouble = ""
        try:
            write()
        except OSError as error:
            if "final" in names or not is_full(error):
                raise
            trouble = error.strerror or str(error)
            self._journal.say(trouble)
        self._link.send({"op": "done", "trouble": trouble})

    @property
    def _stops(self) -> bool:
        """Whether a callback wants training to end after this epoch."""
        return bool(getattr(self._job.model, "stop_training", False))

    def _report_boundary(self, epoch: int, data: Message) -> None:
        """Tell the hub that this worker waits for orders; `data` describes the data sets."""
        told = self._job.carried.told
        self._link.send({
            "op": "boundary",
            "epoch": epoch,
            "saved": self._saved,
            "data": data,
            "told": self._position.stage == EpochStage.TOLD,
            "stop": self._stops,
            "values": told[-1] if told else {},
        })

    def _finish(self, writer: int) -> Order:
        """Finish the training after the last boundary. Return the order to end."""
        self._callbacks(self.plan.epochs, "on_train_end")
        self._journal.end_training()
        if self._snapshotter is not None:
            self._snapshotter.close(wait=False)
        while True:
            faults.at("finishing")
            state = result_of(self._job) if writer == self._number else b""
            self._link.send({"op": "finished"}, state)
            order, blob = self._control.order("state", "bye")
            if order["op"] == "bye":
                return order, blob
            writer = self._number


def take_part(number: int, link: Link, job: TrainingJob, terms: Terms, quiet: bool = False) -> None:
    """Take part in a training as worker `number` until the hub ends the job. `quiet`: write nothing to stderr and
    stdout. Raises exceptions of user code, EngineError and HubGone."""
    journal = WorkerLog(number, quiet, job.worker_logger)
    device = choose_device()
    control = ControlThread(number, link, device)
    control.start()
    with ExitStack() as streams:
        try:
            order, _ = control.order("load", "bye")
            if order["op"] == "load":
                control.phase = "loading"
                prepared = prepare(order, job, terms, device, link, control, journal, streams)
                Member(number, link, control, job, terms, prepared).run()
        except HubGone:
            raise control.why_gone() from None
        finally:
            control.close()
