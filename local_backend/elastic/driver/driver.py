"""One training, run by the driver: it passes events to the hub, carries out the hub's actions, and calls the logger.

The hub has a thread of its own, so that it learns of dead workers even if the user's logger is slow. The thread that
called `train` reports.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, NoReturn

from local_backend.elastic.driver.chronicle import Chronicle
from local_backend.elastic.driver.hub_server import HubServer, Observed, Pong
from local_backend.elastic.driver.launcher import Allocation, InProcessLauncher, WorkerLauncher, runner
from local_backend.elastic.driver.options import Options, TrainingRequest, limits
from local_backend.elastic.driver.record import TrainingRecord
from local_backend.elastic.driver.reporting import Listeners, MakeReporter, Reporter, say_platform
from local_backend.elastic.driver.verification import (
    Check,
    OtherNumber,
    Rehearsal,
    RehearsalFinished,
    SilentReporter,
    other_number,
)
from local_backend.elastic.errors import EngineError, WorkerLost
from local_backend.elastic.hub import events, hub
from local_backend.elastic.hub.balance import Balance
from local_backend.elastic.hub.liveness import Liveness
from local_backend.elastic.hub.watching import VALIDATION, Watch, WatchRule
from local_backend.elastic.plan import shard_count
from local_backend.elastic.script import captured, schedules
from local_backend.elastic.script.hooks import LoggerHooks
from local_backend.elastic.script.job import TrainingJob, revive
from local_backend.elastic.script.recipe import Recipe
from local_backend.elastic.script.surroundings import choose_device, thread_count
from local_backend.elastic.script.whole import by_name, is_whole_set
from local_backend.elastic.state import artifacts, resume
from local_backend.elastic.state.replica import take_over
from local_backend.elastic.worker.agreement import table_of
from local_backend.elastic.worker.preparation import Terms
from local_backend.elastic.worker.worker import serve

#: Seconds until the driver kills workers that have not ended: after a finished job, and after a failed job.
GRACE, HASTE = 10.0, 1.0
#: Maximum number of reports that wait for a slow logger. At this number, the hub waits, and after a while the workers.
#: It is small because a killed driver loses these reports, and snapshots that are ahead of the log are of no use.
BACKLOG = 64
#: Options that apply to the joint steps of all workers.
_NOT_ASYNC = ("clip_grad_norm", "clip_grad_value", "ema")
#: Exit code if `verify_only` is set and the training could not be verified.
NOT_VERIFIED = 3


def choose_launcher(job: TrainingJob) -> WorkerLauncher:
    """Return a launcher that uses the backend's runner if there is one, else this process."""
    return runner() or InProcessLauncher(
        lambda number, address, key: serve(number, address, key, job), choose_device().type
    )


def train(job: TrainingJob, request: TrainingRequest, driver_logger: Any, launcher: WorkerLauncher) -> int:
    """Train `job` to its end. Model and optimizer then hold the result. Return the number of earlier trainings of the
    model, which may be larger than that of the request if a driver was killed.

    Raises the exception of a worker as the worker raised it, WorkerLost if training cannot go on, and EngineError.
    """
    allocation = launcher.allocation()
    options = Options.of(allocation.attributes, request)
    schedules.check(job, options.mode)
    if options.mode == "async":
        _check_async(job)
    step_samples = request.effective_batch or (request.engines or allocation.max_workers) * job.batch
    step_samples *= job.recipe.accumulate
    again = not launcher.in_process and TrainingRecord.left()
    start = resume.begin(job, step_samples * options.window, again)
    most = min(allocation.max_workers, request.engines or allocation.max_workers)
    course = hub.Course(
        workers=min(most, shard_count(step_samples, job.batch)),
        epochs=job.epochs,
        batch=job.batch,
        step_samples=step_samples * options.window,
        seed=request.seed if start.seed is None else start.seed,
        validation_freq=request.validation_freq,
        checkpoint_freq=request.checkpoint_freq,
        test_chunk=max(1, 2 * job.loader_threads),
        multiple=step_samples if job.recipe.drop_last else 1,
        phases=len(job.optimizers),
        limits=limits(request.scaleup, job.epochs, most),
        watch=_watch(job.recipe),
        start=start.epochs,
        start_steps=start.steps,
        start_samples=start.samples,
    )
    _check_watch(job, course.watch)
    if launcher.in_process:
        record = TrainingRecord.none(course, request.count)
    else:
        whole = start.snapshot is not None
        record = TrainingRecord.open(course, options.mode, job, request.count, whole=whole)
    record.go_on_from(start)
    check = _rehearse(job, options, record, launcher) if options.verify else None
    with job.put_back():
        hooks = None if driver_logger is None else LoggerHooks(driver_logger)
        reporter = partial(Reporter, hooks, Listeners(launcher.progress, launcher.metrics))
        try:
            _Driver(job, options, record, reporter, launcher, verification=check).run()
        except RehearsalFinished:
            raise SystemExit(0 if check is not None and check.held else NOT_VERIFIED) from None
    if check is not None:
        check.to_manifest()
    if job.save_to_onnx and not launcher.in_process and not artifacts.onnx_path().exists():
        # The worker wrote the reason to its own stderr only.
        print("WARNING: no ONNX model was written; see the log of the worker that saved last", file=sys.stderr)
    record.end()
    return record.count


def _watch(recipe: Recipe) -> Watch:
    """Return the rules that depend on values of an epoch, as the options of a training ask for them.

    A `monitor` option is checked even if no scheduler depends on it.
    """
    early, best = recipe.early_stopping, recipe.save_best
    by_value = schedules.goes_by_a_value(recipe) or recipe.monitor
    return Watch(
        plateau=WatchRule(recipe.monitor) if by_value else None,
        stopping=None if early is None else WatchRule(early.monitor or recipe.monitor, early.mode, early.min_delta),
        patience=0 if early is None else early.patience,
        best=WatchRule(best if isinstance(best, str) else recipe.monitor) if best else None,
    )


def _check_watch(job: TrainingJob, watch: Watch) -> None:
    """Raise ValueError if a rule depends on a value that no epoch can have."""
    if any(is_whole_set(metric) for metric in job.metrics):
        return  # such a metric gives its values names when it is computed
    names = [f"loss_{name}" for name in job.phases] or ["accuracy", *by_name(job.metrics)]
    possible = {f"{prefix}{name}": 0.0 for prefix in ("", VALIDATION) for name in ("loss", *names)}
    unknown = watch.unknown(possible, validated=True, validates=True)
    if unknown:
        raise ValueError(unknown)


def _check_async(job: TrainingJob) -> None:
    """Raise ValueError for options that local steps of single workers cannot support."""
    recipe, default = job.recipe, Recipe()
    names = [name for name in _NOT_ASYNC if getattr(recipe, name) != getattr(default, name)]
    if recipe.precision == "fp16":
        names.append("precision='fp16'")
    if job.phases:
        names.append("several optimizers")
    if names:
        raise ValueError(f"mode async does not support {', '.join(names)}; use mode exact or fast")


def _rehearse(job: TrainingJob, options: Options, record: TrainingRecord, launcher: WorkerLauncher) -> Check | None:
    """Compute the first steps with another number of workers. Return the check that compares the training with them.

    If this is not possible, report the reason, and return None or, with `verify_only`, raise SystemExit. Raises the
    exceptions of a training.
    """

    def say(text: str) -> None:
        print(text, flush=True)
        launcher.history(text)

    workers, why = other_number(launcher, shard_count(record.course.step_samples, job.batch))
    if record.committed or record.course.start:
        workers, why = 0, "not verified: the training continues from a checkpoint, or the driver was restarted"
    if workers == 0:
        say(why)
        if options.verify_only:
            raise SystemExit(NOT_VERIFIED)
        return None
    rehearsal = Rehearsal(options.verify)
    course = record.course
    course = replace(course, workers=workers, checkpoint_freq=0, limits=(), watch=replace(course.watch, best=None))
    throwaway = TrainingRecord(course, generators=record.generators)
    with job.put_back(), suppress(RehearsalFinished):
        other = OtherNumber(launcher, workers)
        _Driver(job, options, throwaway, SilentReporter.of, other, verification=rehearsal).run()
    return Check(options.verify, rehearsed=rehearsal, exact=options.mode == "exact", only=options.verify_only, say=say)


def _allocated(allocation: Allocation) -> events.Allocated:
    return events.Allocated(tuple(slot.id for slot in allocation.slots), allocation.rest)


@dataclass
class _Report:
    """An action for the reporting thread."""

    action: events.Action
    members: int
    #: Whether training was paused before the action.
    after_pause: bool = False
    at: float = field(default_factory=time.monotonic)


class _Driver:
    def __init__(
        self, job: TrainingJob, options: Options, record: TrainingRecord, reporter: MakeReporter,
        launcher: WorkerLauncher, *, verification: Rehearsal | None = None,
    ) -> None:
        """`verification`: gets the actions and the states of the first steps."""
        self._verification = verification
        course = record.course
        self._job = job
        self._launcher = launcher
        self._record = record
        self._make_reporter = reporter
        first = launcher.allocation().next_worker
        self._state = hub.begin(
            course, record.kept, record.committed, record.epochs_done, first,
            values=record.values, totals=record.totals,
        )
        self._liveness = Liveness(options.hang_seconds)
        self._balance = Balance(self._state.crew.shards)
        self._chronicle = Chronicle()
        self._reports: queue.Queue[_Report | BaseException] = queue.Queue(BACKLOG)
        #: Set when the reporting thread has failed. Then the hub ends.
        self._stop = threading.Event()
        self._failed = False
        self._alive: set[int] = set()
        self._status: dict[str, Any] = {}
        #: Whether training is paused, or has been since the last report; whether a lack of slots is the reason.
        self._paused = self._parked = False
        path = [entry for entry in sys.path if isinstance(entry, str)]
        terms = Terms(
            course.epochs, course.batch, course.step_samples, course.multiple, course.phases, course.seed, options.mode,
            str(record.folder) if record.folder else None, options.snapshot_seconds,
            options.window, options.outer_lr, options.outer_momentum, record.generators, course.start,
            f"{table_of(job).digest % (1 << 64):016x}", 0 if verification is None else options.verify,
            saves=verification is None or not verification.ends_early,
        )
        welcome = {
            "op": "welcome", "path": path, "argv": sys.argv, "threads": thread_count(),
            "script": captured.capture(), "terms": asdict(terms),
        }
        self._server = HubServer(welcome, b"" if launcher.in_process else job.dumps())

    def run(self) -> None:
        say_platform(f"start message server {self._server.address}")
        inbox = self._server.inbox
        self._launcher.listen(self._server.ended, lambda allocation: inbox.put(_allocated(allocation)))
        inbox.put(_allocated(self._launcher.allocation()))
        try:
            self._launcher.attend(self._serve)
        finally:
            self._server.close()

    # --- the reporting thread

    def _serve(self) -> None:
        """Report until the job is over, then wait for the hub's thread, which ends the workers."""
        thinking = threading.Thread(target=self._think, name="hub", daemon=True)
        thinking.start()
        try:
            reporter = self._begin(self._reports.get())
            while not self._report(reporter, self._reports.get()):
                pass
        except BaseException:
            # The event wakes the hub's thread.
            self._stop.set()
            self._server.inbox.put(events.Impatient())
            raise
        finally:
            thinking.join()
        self._launcher.history(f"training finished after {self._state.committed} steps")
        reporter.end()

    def _begin(self, report: _Report | BaseException) -> Reporter:
        """Report that training starts. Raises if it fails before that."""
        if isinstance(report, BaseException):
            raise report
        if isinstance(report.action, events.Fail):
            self._fail(report.action)
        assert isinstance(report.action, events.Begin), report.action
        plan = report.action.plan
        self._record.begin(plan)
        reporter = self._make_reporter(plan, self._record.committed, self._record.rows)
        reporter.begin()
        for epoch, values in sorted(self._record.values.items()):
            # The runner may have died before it kept the values that an earlier driver reported.
            if epoch >= self._record.course.start:
                reporter.closed(events.Closed(epoch, values))
        return reporter

    def _report(self, reporter: Reporter, report: _Report | BaseException) -> bool:
        """Report an action. Return whether it is the last one."""
        if isinstance(report, BaseException):
            raise report
        match report.action:
            case events.Commit():
                if report.after_pause:
                    reporter.resumed()
                reporter.commit(report.action, report.members)
                self._record.commit(report.action, reporter.plan)
                reporter.show_progress(report.action)
            case events.Closed():
                reporter.closed(report.action)
                self._record.closed(report.action)
            case events.Stopped():
                reporter.stopped(report.action)
            case events.Rested():
                reporter.rested(report.action)
                self._launcher.rested(report.action.epochs, report.action.stored and self._record.sync())
            case events.Validated():
                if report.action.epoch > self._record.last_validated:
                    reporter.validated(report.action)
                    self._record.validated(report.action)
            case events.End():
                reporter.last_progress()
                if not self._launcher.in_process:
                    take_over(self._job, report.action.state)
                return True
            case events.Fail():
                self._fail(report.action)
            case _:
                raise AssertionError(report.action)
        return False

    def _fail(self, action: events.Fail) -> NoReturn:
        self._launcher.history(f"training failed at step {self._state.committed}: {action.reason.splitlines()[0]}")
        if action.cause is not None:
            if action.cause.trained and not self._launcher.in_process:
                # If the worker has added a parameter, its state does not fit. The cause below names the parameter.
                with suppress(EngineError):
                    take_over(self._job, action.cause.trained)
            raise revive(action.cause.summary, action.cause.traceback, action.cause.exception)
        raise WorkerLost(f"{action.reason}; training stopped after step {self._state.committed}")

    # --- the hub's thread

    def _think(self) -> None:
        """Pass events to the hub until the job is over. Then wait for the workers, and kill workers that do not end."""
        try:
            while self._state.phase is not hub.Phase.ENDED and not self._stop.is_set():
                self._hear(self._next(self._liveness.due(time.monotonic())))
            if self._failed:
                # Workers that wait for each other notice the end when their connections close.
                self._server.dismiss()
            self._see_off(0.0 if self._stop.is_set() else HASTE if self._failed else GRACE)
        except BaseException as error:
            self._see_off(0.0)
            self._reports.put(error)

    def _next(self, until: float | None) -> events.Event | Pong | Observed | None:
        """Return the next event, or None when the check for hung workers is due."""
        try:
            event = self._server.inbox.get(timeout=None if until is None else max(0.0, until - time.monotonic()))
        except queue.Empty:
            return None
        if isinstance(event, BaseException):
            raise event
        if isinstance(event, events.Gone):
            self._alive.discard(event.worker)
        return event

    def _hear(self, event: events.Event | Pong | Observed | None) -> None:
        now = time.monotonic()
        if isinstance(event, Pong):
            self._liveness.ponged(event.worker, event.phase, now)
        elif isinstance(event, Observed):
            if self._verification is not None:
                self._verification.observed(event)
        elif event is not None:
            self._liveness.heard(event, now)
            self._step(event)
            if isinstance(event, events.Kept):
                self._record.prune(self._state.kept)
            for proposal in self._balance.heard(event, self._state, now):
                self._step(proposal)
        # A plain script is its own only worker. No worker waits for it, and user code may hold the GIL for long.
        watched = not self._launcher.in_process
        for consequence in self._liveness.check(self._state, time.monotonic()) if watched else ():
            if isinstance(consequence, (events.Send, events.Kill)):
                self._do(consequence)
            else:
                self._step(consequence)
        self._show_status()

    def _step(self, event: events.Event) -> None:
        self._state, actions = hub.step(self._state, event)
        for action in actions:
            self._do(action)

    def _do(self, action: events.Action) -> None:
        for line in self._chronicle.heard(action, time.monotonic()):
            self._launcher.history(line)
        if self._verification is not None:
            self._verification.heard(action, len(self._state.members))
        match action:
            case events.Send():
                self._server.send(action.worker, dict(action.message), action.attachment)
            case events.Spawn():
                key = self._server.expect(action.worker)
                self._launcher.start(action.worker, action.slot, self._server.address, key)
                self._alive.add(action.worker)
            case events.Kill():
                self._server.cut(action.worker)
                self._launcher.kill(action.worker)
            case (
                events.Begin() | events.Commit() | events.Validated() | events.Closed() | events.Stopped()
                | events.Rested() | events.End() | events.Fail()
            ):
                self._failed = isinstance(action, events.Fail)
                self._put(_Report(action, len(self._state.members), self._paused))
                self._paused = False

    def _put(self, report: _Report) -> None:
        """Queue a report. While a slow logger blocks the hub, no worker counts as hung."""
        while not self._stop.is_set():
            try:
                self._reports.put(report, timeout=0.2)
            except queue.Full:
                self._liveness.resumed(time.monotonic())
                continue
            return

    def _show_status(self) -> None:
        """Send the status of the workers to the launcher if it has changed."""
        state, crew = self._state, self._state.crew
        message = state.unsaved or state.unkept or None
        self._paused = self._paused or state.parked or state.recovering
        self._parked = state.parked or (self._parked and state.recovering)
        if state.resting:
            message = f"rests after epoch {state.epoch + 1}"
        elif state.parked:
            message = f"parked at step {state.committed}: waiting for a slot"
        elif self._parked:
            message = f"resuming at step {state.committed} after parking"
        elif state.recovering:
            message = "recovering: no worker is left; training continues from the newest snapshot"
        status = {
            "workers": len(state.members), "generation": crew.active.number, "resizes": crew.resizes,
            "deaths": crew.deaths, "recovering": state.recovering and not self._parked, "message": message,
            "usable": state.course.most(state.epoch), "pause": self._chronicle.pause,
        }
        if status != self._status:
            self._status = status
            self._launcher.status(**status)

    def _see_off(self, patience: float) -> None:
        """Wait `patience` seconds for all workers to end, then kill the workers that are left."""
        deadline = time.monotonic() + patience
        killed = False
        while self._alive:
            if not killed and time.monotonic() >= deadline:
                for worker in sorted(self._alive):
                    self._launcher.kill(worker)
                killed, deadline = True, time.monotonic() + GRACE
                self._server.dismiss()
            try:
                event = self._server.inbox.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                if killed:
                    return
                continue
            if isinstance(event, events.Gone):
                self._alive.discard(event.worker)
