"""The event loop of a runner: processes, signals, memory, both channels, and the single verdict."""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dlicmd.contract import wire
from dlicmd.contract.sizes import show_size
from dlicmd.contract.states import ERROR, FINISHED, KILLED, PENDING
from local_backend.elastic import RECORDS
from local_backend.files import remove_tree
from local_backend.runtime import launcher_log, processes, tasks, tree
from local_backend.runtime.cgroup import JobGroup, hard_limit
from local_backend.runtime.collector import Collector
from local_backend.runtime.engine import Engine
from local_backend.runtime.launch import Launch, read_restarts, write_record
from local_backend.runtime.launcher import Outcome
from local_backend.runtime.memory import over_limit
from local_backend.runtime.messages import Progressed
from local_backend.runtime.metering import ResourceMeter
from local_backend.runtime.output_times import TimesWriter
from local_backend.runtime.paths import DRIVER, worker_task
from local_backend.runtime.progress import Progress, furthest
from local_backend.runtime.restarts import Restarts
from local_backend.runtime.sandbox import Sandbox
from local_backend.runtime.server_link import ServerLink, Source
from local_backend.runtime.service import RunningService
from local_backend.runtime.tasks import Planner, TaskPlan
from local_backend.runtime.verdict import describe, signal_name

_MEMORY_EVERY = 0.1
#: Least seconds between two records of the highest step.
_STEP_EVERY = 5.0
#: Seconds between 2 looks for processes that ended tasks have left in a sandbox: its process 1 reaps them, so that
#: their end sends no signal to the runner.
_LOOK_EVERY = 0.02
#: Maximum seconds in which the collector reads after the end of the program: of a job that ended by itself, and of one
#: that was stopped.
_REST, _REST_OF_STOPPED = 60.0, 2.0


@dataclass(frozen=True)
class Verdict:
    """How the job ends; the first verdict stands."""

    state: str
    message: str | None = None
    reason: str | None = None
    exit_code: int | None = None
    signal: str | None = None


class Attempt:
    """One attempt of an exec; `run` runs it to its end."""

    def __init__(self, launch: Launch, signals: int, link: ServerLink, group: JobGroup | None) -> None:
        self.launch = launch
        self._sandbox: Sandbox | None = None
        self._group = group
        self._signals = signals
        self._link = link
        self._running: dict[int, TaskPlan] = {}
        self._verdict: Verdict | None = None
        self._kill_at: float | None = None
        self._check_memory_at = time.monotonic()
        self._killed_because: dict[int, str] = {}
        self._server: int | None = None
        #: The processes of an elastic program, or of a service.
        self._engine: Engine | None = None
        self._service: RunningService | None = None
        self._restarts = read_restarts(launch.paths)
        #: Whether the driver has ended on its own, so that no other one continues from its snapshots.
        self._has_exited = False
        #: Restarts of the driver by this runner; when the highest step is written next (monotonic).
        self._driver_restarts = 0
        self._write_step_at = 0.0
        #: The driver was killed and is restarted once no process of the job is left.
        self._restarting = False
        self._progress = Progress(lambda values: link.say(Progressed(values)))
        self._times = TimesWriter(launch.paths)
        self._collector = Collector(launch.paths, _output(launch), self._progress.update)
        self._meter = ResourceMeter(launch.paths)
        link.on_gpus = self._meter.take_gpus
        if launch.spec.service is not None:
            self._collector.due = self._meter.due = None  # kernels have no curves

    def run(self, planner: Planner, sandbox: Sandbox | None) -> Outcome:
        """Start all processes, in the sandbox if there is one; wait for the end, and kill all remaining processes. A
        forked child leaves by `Become`."""
        self._sandbox = sandbox
        self._note(f"attempt {self.launch.attempt} on {', '.join(slot.id for slot in self.launch.slots)}; "
                   f"code in {self.launch.paths.code(self.launch.spec)}")
        self._watch_server()
        if self._verdict is None:
            self._start_all(planner)
        while not self._is_over():
            self._wait()
        self.clear()
        if self._has_exited and not self._is_set_aside:
            with suppress(OSError):
                remove_tree(self.launch.paths.checkpoint / RECORDS)
        self._collect_rest()
        self._progress.flush(now=True)
        return self._outcome(self._verdict or Verdict(FINISHED, exit_code=0))

    def _collect_rest(self) -> None:
        """Read the metrics that the program has written faster than the collector reads. Another stop request ends
        this."""
        self._link.ignore_server()
        is_stopped = self._verdict is not None and self._verdict.state in (KILLED, PENDING)
        self._collector.finish(_REST_OF_STOPPED if is_stopped else _REST, self._may_collect)

    def _may_collect(self) -> bool:
        """Handle the messages of servers, without a wait. Return whether no stop is requested."""
        poll = select.poll()
        for fd, _, events in self._link.sources:
            poll.register(fd, events)
        ready = {fd for fd, _ in poll.poll(0)}
        for fd, handler, _ in self._link.sources:
            if fd in ready:
                handler()
        self._progress.flush()
        self._link.tick()
        return signal.SIGTERM not in _drain(self._signals)

    @property
    def _is_set_aside(self) -> bool:
        """Whether another attempt continues from the snapshots."""
        return self._verdict is not None and self._verdict.state == PENDING

    def clear(self) -> None:
        """Kill all processes that the job has started, repeatedly until none is left."""
        while True:
            self._reap()
            if not self._kill_all():
                break
            select.select([self._signals], [], [], 0.02)
            _drain(self._signals)
        self._running.clear()

    def _kill_all(self) -> bool:
        """Send SIGKILL to all processes that the job has started. Return whether there were any."""
        if self._group is not None:
            self._group.kill()
        left = tree.descendants(os.getpid())
        tree.kill(left)
        return bool(left)

    def outcome_of_fault(self, problem: Exception) -> Outcome:
        """Return the outcome for a fault of the runner itself."""
        return self._outcome(Verdict(ERROR, f"the runner failed: {launcher_log.one_line(str(problem))}", wire.LOST))

    # --- start

    def _start_all(self, planner: Planner) -> None:
        if self.launch.spec.service is not None:
            self._serve(planner)
            return
        if self.launch.spec.resources.elastic:
            self._engine = Engine(
                self.launch, planner, start=self.start, progress=self._progress, note=self._note,
                metrics=self._collector.engine, settle=self._collector.settle)
            self._link.on_allocation = self._engine.reallocate
            self._link.on_set_aside = self._set_aside
            self._start_driver(self._engine)
            return
        for plan in planner.workers():
            if not self._try_to_start(plan):
                break
        self._progress.update({wire.WORKERS: len(self._running)})

    def _serve(self, planner: Planner) -> None:
        """Start the kernels of a service. Each further one starts when its time comes."""
        service = self._service = RunningService(
            self.launch, planner, start=self.start, progress=self._progress, note=self._note,
            fail=lambda why: self._decide(Verdict(ERROR, why, wire.PROGRAM_FAILED), kill=True))
        self._link.on_allocation = service.reallocate
        try:
            service.begin()
        except OSError as problem:
            self._decide(Verdict(ERROR, f"cannot start the kernels: {problem}", wire.LOST))

    @property
    def _elastic(self) -> Engine | RunningService | None:
        """What has the slots of a job whose slots may change."""
        return self._service if self._engine is None else self._engine

    def _start_driver(self, engine: Engine) -> None:
        channel = engine.connect()
        self._try_to_start(engine.planner.driver(channel, self.launch.requeues + self._driver_restarts))
        os.close(channel)

    def _try_to_start(self, plan: TaskPlan) -> bool:
        """Start one of the first processes; if this fails, end the job."""
        try:
            self.start(plan)
        except OSError as problem:
            self._decide(Verdict(ERROR, f"cannot start {plan.task.name}: {problem}", wire.LOST))
            return False
        return True

    def start(self, plan: TaskPlan) -> int:
        """Start a process and watch it; return its pid. Raises OSError."""
        if self._sandbox is not None:
            self._sandbox.check()
        self._times.watch(plan.task.name, (("stdout", plan.stdout), ("stderr", plan.stderr)))
        group = self._enclose(plan)
        try:
            pid = tasks.start(plan, self._sandbox, group)
        finally:
            if group is not None:
                os.close(group)
        self._running[pid] = plan
        self._note(f"{plan.task.name} started, pid {pid}" + ("" if plan.step else f": {plan.argv[0]}"))
        return pid

    def _enclose(self, plan: TaskPlan) -> int | None:
        """Return a descriptor of the control group of a process to start; None without a group."""
        if self._group is None:
            return None
        memory = None if plan.task.is_driver else self.launch.spec.resources.memory
        try:
            return self._group.open(plan.task.name, memory)
        except OSError as problem:
            self._note(f"no control group limits {plan.task.name}: {problem}")
            return None

    def _watch_server(self) -> None:
        if self.launch.die_with is None:
            return
        self._server = processes.watch(self.launch.die_with)
        if self._server is None:
            self._server_is_gone()

    # --- the loop

    def _wait(self) -> None:
        """Wait for the next event and handle it."""
        poll = select.poll()
        for fd, _, events in self._sources():
            poll.register(fd, events)
        ready = {fd for fd, _ in poll.poll(self._timeout())}
        for fd, handler, _ in self._sources():
            if fd in ready:
                handler()
        self._reap()
        self._timers()
        if self._engine is not None and self._restarting:
            self._restart(self._engine)
        if (elastic := self._elastic) is not None:
            elastic.insist()
            self._link.say(elastic.held)

    def _sources(self) -> list[Source]:
        found: list[Source] = [(self._signals, self._on_signal, select.POLLIN), *self._link.sources]
        if self._server is not None:
            found.append((self._server, self._server_is_gone, select.POLLIN))
        channel = self._engine.channel if self._engine is not None else None
        if self._engine is not None and channel is not None and channel.open:
            writing = select.POLLOUT if channel.wants_to_write else 0
            found.append((channel.fd, self._engine.on_ready, select.POLLIN | writing))
        return found + (self._service.sources if self._service is not None else [])

    def _timeout(self) -> float | None:
        """Return the milliseconds until the next timer; None if no timer is set."""
        elastic = self._elastic
        times = [self._kill_at, self._progress.due, self._link.due, self._times.due, self._collector.due,
                 self._meter.due]
        times += elastic.timers if elastic is not None else []
        if self.launch.spec.resources.memory is not None:
            times.append(self._check_memory_at)
        leaving = elastic is not None and elastic.workers.leaving
        if self._sandbox is not None and (self._restarting or leaving):
            times.append(time.monotonic() + _LOOK_EVERY)
        due = [moment for moment in times if moment is not None]
        return max(0.0, min(due) - time.monotonic()) * 1000 + 1 if due else None

    @property
    def _holders(self) -> frozenset[int]:
        return self._sandbox.processes if self._sandbox is not None else frozenset()

    def _timers(self) -> None:
        now = time.monotonic()
        self._collector.turn()
        self._meter.turn(self._running)
        self._progress.flush()
        self._times.tick()
        self._link.tick()
        self._note_step(now)
        if self.launch.spec.resources.memory is not None and now >= self._check_memory_at:
            self._check_memory(self.launch.spec.resources.memory)
            self._check_memory_at = time.monotonic() + _MEMORY_EVERY
        if self._kill_at is not None and now >= self._kill_at:
            self._note("processes still run after the grace period; killing them")
            self._kill_all()
            self._kill_at = now + 1

    def _on_signal(self) -> None:
        if signal.SIGTERM in _drain(self._signals):
            self._decide(Verdict(KILLED, "stopped on request", wire.STOPPED))

    def _set_aside(self, sequence: int) -> None:
        """End a resting job, whose state is kept for the next attempt. No process is asked: a script that ends by
        itself would have finished."""
        epochs = None if self._engine is None else self._engine.may_end(sequence)
        if epochs is not None and self._verdict is None:
            text = f"set aside after epoch {epochs}: its processes have ended, and its state is kept"
            self._decide(Verdict(PENDING, text), kill=True)

    def _server_is_gone(self) -> None:
        self._server = None
        self._decide(Verdict(KILLED, "killed together with the server (--die-with-server)", wire.STOPPED))
        self._kill_all()

    def _reap(self) -> None:
        """Reap the processes that have ended, including adopted orphans."""
        while (found := _next_dead()) is not None:
            pid, status = found
            plan = self._running.pop(pid, None)
            if plan is not None:
                self._times.leave((plan.stdout, plan.stderr))
                self._ended(pid, plan, status)
        if (elastic := self._elastic) is not None:
            elastic.workers.settle(self._running, self._holders)

    # --- end

    def _ended(self, pid: int, plan: TaskPlan, status: int) -> None:
        because = self._killed_because.pop(pid, None)
        if because is None and status != 0 and self._group is not None and self._group.was_full(plan.task.name):
            because = self._out_of_memory(plan)
        what = f"exit code {status}" if status >= 0 else f"signal {signal_name(-status)}"
        self._note(f"{plan.task.name} (pid {pid}) ended: {because or what}")
        if (elastic := self._elastic) is not None and not plan.task.is_driver:
            elastic.worker_ended(plan.task.number, pid, status, because)
            return
        if self._engine is not None:
            self._engine.disconnect()
            self._has_exited = status >= 0
            if status < 0 and self._verdict is None:
                self._driver_killed(self._engine, -status)
                return
            if not self._engine.trained:
                self._note("the program did not call train() of a FabricModel, so it ran in 1 process without workers")
        if status != 0 and because is None:
            code = status if status > 0 else 128 - status
            name = signal_name(-status) if status < 0 else None
            self._decide(Verdict(ERROR, describe(status, plan.stderr), wire.PROGRAM_FAILED, code, name))

    def _driver_killed(self, engine: Engine, number: int) -> None:
        """Restart a driver that a signal killed while the job was not ending. End the job if restarts bring no
        progress."""
        how = f"the driver was killed by signal {number} ({signal_name(number)})"
        self._restarts.reach(engine.furthest)
        if not self._restarts.again():
            text = f"{how}; it is not restarted, because {Restarts.MOST} restarts brought no progress"
            self._decide(Verdict(ERROR, text, wire.PROGRAM_FAILED, 128 + number, signal_name(number)))
            return
        self._driver_restarts += 1
        self._write_restarts()
        self._note(f"{how}; restarting it, training resumes from its newest snapshot")
        engine.recover(f"{how} and is being restarted")
        self._restarting = True

    def _note_step(self, now: float) -> None:
        """Write the highest step at intervals: after a crash of this process, the server compares it."""
        if now < self._write_step_at:
            return
        step = furthest(self._progress.values) if (elastic := self._elastic) is None else elastic.furthest
        if self._restarts.reach(step):
            self._write_step_at = now + _STEP_EVERY
            self._write_restarts()

    def _write_restarts(self) -> None:
        with suppress(OSError):  # the disk is full: the count is lost only if this process is killed, too
            write_record(self.launch.paths.restarts, self._restarts)

    def _restart(self, engine: Engine) -> None:
        """Start the driver again once no process of the old driver and its workers is left."""
        left = tree.descendants(os.getpid(), self._holders)
        tree.kill(left)
        if not left and not self._running and self._verdict is None:
            self._restarting = False
            self._start_driver(engine)

    def _decide(self, verdict: Verdict, *, kill: bool = False) -> None:
        """Set the verdict, unless one is set, and send SIGTERM to all running processes; with `kill`, SIGKILL."""
        if self._verdict is not None:
            return
        self._verdict = verdict
        self._note(f"ending as {verdict.state}: {verdict.message}", bounded=False)
        if kill:
            self._kill_all()
        grace = self.launch.stop_grace
        if self._service is not None:
            grace = max(grace, self._service.drain())
        for pid in () if kill or self._service is not None else self._running:
            tree.terminate_group(pid)
        self._kill_at = time.monotonic() + (1 if kill else grace)

    def _check_memory(self, limit: int) -> None:
        for pid, plan in list(self._running.items()):
            if plan.task.is_driver or pid in self._killed_because:
                continue
            full = self._group is not None and self._group.was_full(plan.task.name)
            used = None if full else over_limit(pid, limit)
            if full or used is not None:
                self._killed_because[pid] = self._out_of_memory(plan, used)
                tree.kill(list(tree.group_and_tree(pid)))

    def _out_of_memory(self, plan: TaskPlan, used: int | None = None) -> str:
        """End the job, because a worker used too much memory, by default that of its control group; a service goes on
        with another kernel. Return why."""
        limit = self.launch.spec.resources.memory or 0
        used = hard_limit(limit) if used is None else used
        message = (f"out of memory: worker {plan.task.number} used {show_size(used)} of {show_size(limit)} "
                   "(--workerMemory)")
        if self._service is not None:
            return message
        self._decide(Verdict(ERROR, message, wire.OUT_OF_MEMORY, 128 + signal.SIGKILL, "SIGKILL"))
        return "out of memory"

    def _is_over(self) -> bool:
        if (self._restarting or self._service is not None) and self._verdict is None:
            return False
        return not any(plan.task.is_driver or self._engine is None for plan in self._running.values())

    def _outcome(self, verdict: Verdict) -> Outcome:
        self._note(f"ended {verdict.state}" + (f": {verdict.message}" if verdict.message else ""), bounded=False)
        return Outcome(self.launch.attempt, verdict.state, time.time(), verdict.exit_code, verdict.signal,
                       verdict.message, verdict.reason, self._progress.values)

    def _note(self, text: str, *, bounded: bool = True) -> None:
        launcher_log.note(self.launch.paths.launcher_log, "runner", text, bounded=bounded)


def _output(launch: Launch) -> list[Path]:
    """Return the captured output in which a program prints its metrics: of the driver, or of the first worker."""
    if launch.spec.service is not None:
        return []
    elastic = launch.spec.resources.elastic
    task = DRIVER if elastic else worker_task(1)
    return [launch.paths.capture(task, stream, elastic) for stream in ("stdout", "stderr")]


def _next_dead() -> tuple[int, int] | None:
    """Reap one ended child. Return its pid and its status (negative for a signal), or None if there is none."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, os.waitstatus_to_exitcode(status)) if pid else None


def _drain(fd: int) -> bytes:
    try:
        return os.read(fd, 65536)
    except BlockingIOError:
        return b""
