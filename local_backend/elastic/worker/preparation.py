"""The work of a worker before its first generation: load the data sets, move the model to its device, and warm up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from local_backend.elastic import faults
from local_backend.elastic.collective.local_sgd import Window
from local_backend.elastic.data.data_sets import DataSets, SampledOrder
from local_backend.elastic.data.loader_changes import LoaderChanges
from local_backend.elastic.data.loading import Stream
from local_backend.elastic.data.probes import Probe
from local_backend.elastic.errors import EngineError
from local_backend.elastic.frames import Message
from local_backend.elastic.plan import StepPlan
from local_backend.elastic.script import captured
from local_backend.elastic.script.job import TrainingJob
from local_backend.elastic.state import manifest
from local_backend.elastic.state.replica import Replica
from local_backend.elastic.worker.control import ControlThread, Link
from local_backend.elastic.worker.epoch_end import EpochEnd
from local_backend.elastic.worker.journal import WorkerLog
from local_backend.elastic.worker.strays import Collate
from local_backend.elastic.worker.trainer import Trainer


@dataclass(frozen=True)
class Terms:
    """Settings of the training that the driver sends to every worker."""

    epochs: int
    batch: int
    step_samples: int
    #: An epoch covers a whole multiple of this number of samples.
    multiple: int
    #: Steps over the same samples: one for each optimizer.
    phases: int
    seed: int
    mode: str
    #: Folder for snapshots, None for no snapshots.
    snapshots: str | None
    #: Least seconds between two snapshots.
    snapshot_seconds: float
    #: In asynchronous mode: optimizer steps in a window, and learning rate and momentum of the outer step at its end.
    window: int
    outer_lr: float
    outer_momentum: float
    #: States of the global generators at the start of datasets_function, for `captured.set_generators`.
    generators: str = ""
    #: Epochs completed before this training began.
    start: int = 0
    #: Fingerprint of the state before training, for the manifest.
    initial: str = ""
    #: Number of first steps after which the worker reports its state, for `verification`.
    verify: int = 0
    #: Whether callbacks save the user's artifacts after the last epoch.
    saves: bool = True


@dataclass(frozen=True)
class Prepared:
    """The parts of a worker that can enter a generation."""

    plan: StepPlan
    #: Epoch → its sample indices in order.
    order_of: Callable[[int], Sequence[int] | np.ndarray]
    #: The orders that a sampler gives, None without a sampler.
    sampled: SampledOrder | None
    stream: Stream
    probe: Probe
    replica: Replica
    trainer: Trainer
    epoch_end: EpochEnd
    journal: WorkerLog


def prepare(  # noqa: PLR0917
    order: Message, job: TrainingJob, terms: Terms, device: torch.device, link: Link, control: ControlThread,
    journal: WorkerLog, streams: ExitStack,
) -> Prepared:
    """Carry out the order `load`, and tell the hub that the worker is ready. Leave open streams to `streams`.

    Raises exceptions of user code, EngineError and HubGone.
    """
    faults.at("loading")
    replica = Replica(job)
    job.find_parts()
    data = _load(order, job, terms, journal)
    plan = data.plan(
        terms.batch, terms.step_samples, terms.epochs, terms.seed, multiple=terms.multiple, phases=terms.phases
    )
    order_of = data.order_of(plan)
    journal.say("create dataloader")
    journal.say(f"! dataset size {len(data.train)}, batch size {job.batch}")
    job.find_late_parts()
    # Fork loader processes before any socket to another worker exists, because they would keep these sockets open.
    stream, tests = _open_streams(data, job, terms.seed, device, link, streams)
    probe = Probe(data, terms.seed)
    job.move(device)
    if device.type == "cuda":
        journal.say(f"CUDA Device set to: {device.index}")
    window = Window(terms.window, terms.outer_lr, terms.outer_momentum) if terms.mode == "async" else None
    trainer = Trainer(job, plan, stream, device, mode=terms.mode, window=window, link=link, control=control)
    known = {"samples": data.samples, "test_samples": len(data.test), **probe.first}
    describe = partial(manifest.write, job, plan, terms.mode, data=known, initial=terms.initial)
    epoch_end = EpochEnd(job, trainer, tests, replica, journal, describe=describe, generators=terms.generators)
    for callback in job.callbacks:
        callback.params = {"optimizer": job.optimizer, "epochs": plan.epochs}
        callback.model = job.model
    # Shuffle now: for millions of samples it takes as long as several steps, and the other members would wait.
    order_of(order["epoch"])
    if order["warm"]:
        _warm_up(replica, trainer, journal)
    link.send({"op": "ready", "samples": data.samples, "test_batches": data.test_batches, "data": probe.first})
    faults.at("ready")
    return Prepared(plan, order_of, data.sampled, stream, probe, replica, trainer, epoch_end, journal)


def _load(order: Message, job: TrainingJob, terms: Terms, journal: WorkerLog) -> DataSets:
    """Call the user's datasets_function."""
    journal.say("create dataset")
    captured.set_generators(terms.generators)
    known = (order.get("plan") or {}).get("samples")
    return DataSets(job, terms.seed, known, journal.say)


def _open_streams(  # noqa: PLR0917
    data: DataSets, job: TrainingJob, seed: int, device: torch.device, link: Link, streams: ExitStack
) -> tuple[Stream, Stream]:
    """Return the streams of the training set and of the test set. `streams` closes them."""
    collate = job.fn_batch_collate and Collate(job.fn_batch_collate, job.recipe.local_state)
    train, tests = (
        streams.enter_context(closing(Stream(
            samples, seed, collate, job.loader_threads, (link.descriptor,), pin_memory=device.type == "cuda",
            changes=LoaderChanges(job, [samples, job.fn_batch_collate]) if job.loader_threads else None,
        )))
        for samples in (data.train, data.test)
    )
    return train, tests


def _warm_up(replica: Replica, trainer: Trainer, journal: WorkerLog) -> None:
    """Run two steps alone and undo them, so that compilers, allocators and thread pools are ready.

    User code may fail here, because it needs values that callbacks of the members have set. The newcomer gets these
    values later, with the state.
    """
    before = replica.copy(replica.capture())
    faults.at("warming")
    try:
        trainer.warm_up()
    except EngineError:
        raise
    except Exception as error:
        journal.say(f"warm-up ended early: {type(error).__name__}: {error}")
    replica.restore(before)
