"""Runs one training from the driver: starts workers, feeds the hub, carries out what it decides."""

from __future__ import annotations

import queue
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from local_backend.elastic import artifacts, events, hub
from local_backend.elastic.errors import WorkerLost
from local_backend.elastic.group import StoreHost
from local_backend.elastic.hub_io import HubServer
from local_backend.elastic.job import Job, revive
from local_backend.elastic.launcher import Allocation, InProcessLauncher, Launcher, runner
from local_backend.elastic.plan import shard_count
from local_backend.elastic.reporting import Reporter
from local_backend.elastic.surroundings import choose_device, thread_count
from local_backend.elastic.worker import serve

#: Seconds that workers have to end by themselves when the job is done, before they are killed.
GRACE = 10.0


@dataclass(frozen=True)
class Request:
    """How a script wants to be trained."""

    #: Most workers, and shards of a step; None for as many as the job was submitted with.
    engines: int | None
    #: Samples of a step, instead of `engines`.
    effective_batch: int | None
    validation_freq: int
    checkpoint_freq: int
    seed: int


def choose_launcher(job: Job) -> Launcher:
    """The backend's runner where there is one, else this very process."""
    return runner() or InProcessLauncher(
        lambda number, address, key: serve(number, address, key, job), choose_device().type
    )


def train(job: Job, request: Request, driver_logger: Any, launcher: Launcher) -> None:
    """Train `job` to its end; model and optimizer then hold the result.

    Raises the exception of a worker as it was raised there, WorkerLost when one died without any, EngineError.
    """
    allocation = launcher.allocation()
    step_samples = request.effective_batch or (request.engines or allocation.max_workers) * job.batch
    workers = worker_numbers(allocation, request, shard_count(step_samples, job.batch))
    store = StoreHost() if len(workers) > 1 else None
    course = hub.Course(
        workers=workers,
        epochs=job.epochs,
        batch=job.batch,
        step_samples=step_samples,
        seed=request.seed,
        validation_freq=request.validation_freq,
        checkpoint_freq=request.checkpoint_freq,
        store=store.port if store else 0,
        test_chunk=max(1, 2 * job.loader_threads),
    )
    try:
        with job.put_back() if launcher.in_process else nullcontext():
            _Driver(job, course, driver_logger, launcher, allocation).run()
    finally:
        if store:
            store.close()
    if job.save_to_onnx and not launcher.in_process and not artifacts.onnx_path().exists():
        # The worker said why, but on its own standard error.
        print(f"WARNING: no ONNX model was written; the log of worker {workers[0]} says why", file=sys.stderr)


def worker_numbers(allocation: Allocation, request: Request, shards: int) -> tuple[int, ...]:
    """Numbers of the workers to start, from 1: no more than slots, shards, and what script or submission allow."""
    most = min(len(allocation.slots), allocation.max_workers, shards)
    return tuple(range(1, max(1, min(most, request.engines or most)) + 1))


class _Driver:
    def __init__(
        self, job: Job, course: hub.Course, driver_logger: Any, launcher: Launcher, allocation: Allocation
    ) -> None:
        self._job = job
        self._launcher = launcher
        self._slots = allocation.slots
        self._workers = course.workers
        self._state = hub.State(course)
        self._reporter = Reporter(driver_logger, launcher.progress, len(course.workers))
        payload = b"" if launcher.in_process else job.dumps()
        path = [entry for entry in sys.path if isinstance(entry, str)]
        dtype = str(torch.get_default_dtype()).removeprefix("torch.")
        welcome = {"op": "welcome", "path": path, "argv": sys.argv, "threads": thread_count(), "dtype": dtype}
        self._server = HubServer(course.workers, welcome, payload)
        self._gone: set[int] = set()

    def run(self) -> None:
        print(f"start message server {self._server.address}", flush=True)
        self._launcher.listen(self._server.ended)
        try:
            for worker, slot in zip(self._workers, self._slots, strict=False):
                self._launcher.start(worker, slot, self._server.address, self._server.key)
            self._launcher.attend(self._serve)
        finally:
            self._server.close()

    def _serve(self) -> None:
        """Feed the hub until the job is over, and then see the workers off."""
        patience = 0.0
        try:
            while self._state.phase is not hub.Phase.ENDED:
                self._step(self._next_event(None))
            patience = GRACE
        finally:
            self._see_off(patience)
        self._launcher.history(f"training is done after {self._state.committed} steps")
        self._reporter.end()

    def _next_event(self, seconds: float | None) -> events.Event:
        event = self._server.inbox.get(timeout=seconds)
        if isinstance(event, BaseException):
            raise event
        if isinstance(event, events.Gone):
            self._gone.add(event.worker)
        return event

    def _step(self, event: events.Event) -> None:
        self._state, actions = hub.step(self._state, event)
        for action in actions:
            self._do(action)

    def _do(self, action: events.Action) -> None:
        match action:
            case events.Send():
                self._server.send(action.worker, dict(action.message))
            case events.Begin():
                self._begin(action)
            case events.Commit():
                self._reporter.commit(action)
            case events.Validated():
                self._reporter.validated(action)
            case events.End():
                self._reporter.last_progress()
                if not self._launcher.in_process:
                    self._job.load_state(action.state)
            case events.Fail():
                self._fail(action)

    def _begin(self, action: events.Begin) -> None:
        plan = action.plan
        self._launcher.history(
            f"generation {self._state.generation}: workers {', '.join(map(str, self._workers))}; "
            f"{plan.epochs} epochs of {plan.steps_per_epoch} steps, each {plan.step_samples} samples in "
            f"{plan.shards} shards"
        )
        self._reporter.begin(plan)

    def _fail(self, action: events.Fail) -> None:
        self._launcher.history(f"training failed at step {self._state.committed}: {action.reason.splitlines()[0]}")
        if action.cause is not None:
            raise revive(action.cause.summary, action.cause.traceback, action.cause.exception)
        raise WorkerLost(f"{action.reason}; training stopped after step {self._state.committed}")

    def _see_off(self, patience: float) -> None:
        """Wait for all workers to end, and kill those that do not in time."""
        deadline = time.monotonic() + patience
        killed = False
        while len(self._gone) < len(self._workers):
            if not killed and time.monotonic() >= deadline:
                self._dismiss()
                killed, deadline = True, time.monotonic() + GRACE
            try:
                self._next_event(max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                if killed:
                    return
            except Exception:
                # What workers say after the end changes nothing.
                continue

    def _dismiss(self) -> None:
        for worker in self._workers:
            if worker not in self._gone:
                self._launcher.kill(worker)
        self._server.close()
