"""The life of a kernel process: it connects, starts, answers batches, connects again, and leaves after SIGTERM."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import traceback
from collections.abc import Coroutine, Iterator
from typing import Any, Protocol

from local_backend.inference.kernel import frames
from local_backend.inference.kernel.connection import GatewayConnection, GatewayGone
from local_backend.inference.kernel.kernel_log import log_debug, log_error, log_info, log_warn
from local_backend.inference.kernel.problems import TaskError
from local_backend.inference.kernel.tasks import KernelContext, TaskBatch, TaskContext, tasks_from

#: Variables of a kernel process: the gateway's socket, the text that HELLO shows, the number of the kernel, a
#: descriptor that gets a byte once the kernel is ready, and a JSON file with the description of the model.
SOCKET, KEY, NUMBER = "DLI_KERNEL_SOCKET", "DLI_KERNEL_KEY", "DLI_KERNEL_NUMBER"
READY_FD, DESCRIPTION = "DLI_READY_FD", "DLI_MODEL_DESCRIPTION"
#: Seconds between attempts to connect: the first wait, and the longest.
_BACKOFF = (0.02, 1.0)
#: After so many tasks in a row that fail alone, the rest of their batch fails, too.
_HOPELESS = 3


class Hooks(Protocol):
    """What a kernel implements."""

    def on_kernel_start(self, kernel_context: KernelContext) -> Any: ...

    def on_task_invoke(self, task_context: TaskContext) -> Any: ...

    def on_kernel_shutdown(self) -> Any: ...


def serve(kernel: Hooks) -> None:
    """Run a kernel until SIGTERM. Raises what `on_kernel_start` raises, and SystemExit with status 2 outside of the
    main thread of a kernel process."""
    if SOCKET not in os.environ:
        log_error(f"This program is a kernel and needs a gateway: {SOCKET} is not set. To try it, run: dlim debug DIR")
        raise SystemExit(2)
    if threading.current_thread() is not threading.main_thread():
        log_error("A kernel runs in the main thread of its process: call run() there.")
        raise SystemExit(2)
    with _stop_signal() as stop:
        _KernelProcess(kernel, stop).run()


def invoke(kernel: Hooks, batch: TaskBatch, again: bool = True) -> None:
    """Let the kernel handle one batch, and send the answers. Exceptions become answers and lines of the log.

    `again`: after an exception, the kernel gets the tasks without an answer one by one, so that one bad request does
    not fail those of other clients.
    """
    problem = _attempt(kernel, batch, batch.tasks[0])
    if problem is not None:
        alone = batch.untouched() if again and len(batch.tasks) > 1 else []
        if alone:
            batch.flush()
        failures = 0
        for task in alone:
            task.unlink()
            problem = None if task.cancelled else _attempt(kernel, batch, task)
            failures = 0 if problem is None else failures + 1
            if problem is not None:
                task.fail(*_sentence(problem))
            if failures == _HOPELESS:
                break
        if problem is not None:
            batch.fail_rest(*_sentence(problem))
    batch.finish()


def _attempt(kernel: Hooks, batch: TaskBatch, head: TaskContext) -> Exception | None:
    """Call the kernel. Return the exception that it raises, after a line in the log."""
    try:
        found = kernel.on_task_invoke(head)
        if isinstance(found, Iterator):
            _send_parts(found, head)
        elif isinstance(found, Coroutine):
            found.close()
            raise TypeError("on_task_invoke is a coroutine: declare it with `def`, and call asyncio.run in it")
    except TaskError as problem:
        return problem
    except Exception as problem:
        log_error(traceback.format_exc().rstrip())
        return problem
    return None


def _sentence(problem: Exception) -> tuple[str, int]:
    """Return what a client gets for an exception: a sentence, and an HTTP status."""
    if isinstance(problem, TaskError):
        return problem.sentence, problem.status
    return f"The kernel failed with {type(problem).__name__}. The log of the model says more.", 500


def _send_parts(parts: Iterator[Any], head: TaskContext) -> None:
    """Send what a generator yields: parts for the first task, or pairs of a task and a part."""
    waited = {id(task) for task in tasks_from(head)}
    for one in parts:
        task, part = one if isinstance(one, tuple) else (head, one)
        if not task.send(part):
            waited.discard(id(task))
            if not waited:
                break
    close = getattr(parts, "close", None)
    if close is not None:
        close()


class _KernelProcess:
    def __init__(self, kernel: Hooks, stop: _StopSignal) -> None:
        self._kernel = kernel
        self._stop = stop
        self._path = os.environ[SOCKET]
        self._number = os.environ.get(NUMBER, "0")
        self._connection: GatewayConnection | None = None

    def run(self) -> None:
        # The gateway shows a kernel that starts. A kernel starts without it, too, and does not wait for its answer.
        with contextlib.suppress(GatewayGone):
            self._connection = self._connect()
        self._kernel.on_kernel_start(KernelContext(_description(), self._number))
        self._stop.ready = True
        if self._connection is not None:
            try:
                self._connection.greet()
            except GatewayGone:
                self._connection = None
        while not self._stop.requested:
            connection = self._connection = self._connection or self._connect_again()
            if connection is None:
                break
            if connection.send_frame(frames.READY):
                self._tell_the_runner()
                self._serve(connection)
            self._stop.connection = None
            connection.close()
            self._connection = None
            select.select([self._stop.descriptor], [], [], _BACKOFF[0])
        self._kernel.on_kernel_shutdown()
        log_debug("The kernel has ended.")

    def _connect(self) -> GatewayConnection:
        hello = {"version": frames.VERSION, "key": os.environ.get(KEY, ""), "kernel": int(self._number),
                 "pid": os.getpid()}
        connection = GatewayConnection(self._path, hello, self._stop.descriptor)
        self._stop.connection = connection
        return connection

    def _connect_again(self) -> GatewayConnection | None:
        """Connect, again and again; return None if the kernel must leave."""
        wait, longest = _BACKOFF
        shown = ""
        while not self._stop.requested:
            try:
                connection = self._connect()
                connection.greet()
            except GatewayGone as problem:
                if str(problem) != shown:
                    shown = str(problem)
                    log_info(f"The kernel waits for the gateway: {shown}")
                select.select([self._stop.descriptor], [], [], wait)
                wait = min(2 * wait, longest)
            else:
                return connection
        return None

    def _tell_the_runner(self) -> None:
        """Write a byte to DLI_READY_FD, once."""
        descriptor = os.environ.pop(READY_FD, None)
        if descriptor is not None:
            try:
                os.write(int(descriptor), b"1")
                os.close(int(descriptor))
            except (OSError, ValueError) as problem:
                log_warn(f"{READY_FD}={descriptor} cannot be written: {problem}")

    def _serve(self, connection: GatewayConnection) -> None:
        """Answer batches until the connection ends, or the kernel leaves and has answered all of them."""
        count = connection.welcome.get("parallel_size", 1)
        others = [threading.Thread(target=self._answer_beside, args=(connection,), name=f"kernel-{number}")
                  for number in range(2, count + 1 if isinstance(count, int) else 2)]
        for thread in others:
            thread.start()
        self._answer_batches(connection)
        for thread in others:
            thread.join()

    def _answer_beside(self, connection: GatewayConnection) -> None:
        """Answer batches in a thread. What ends the main thread, such as SystemExit, ends the process here, too."""
        try:
            self._answer_batches(connection)
        except BaseException:
            log_error(traceback.format_exc().rstrip())
            os._exit(1)

    def _answer_batches(self, connection: GatewayConnection) -> None:
        again = False
        while (found := connection.receive(again)) is not None:
            again = True
            payload, cancelled = found
            try:
                batch = TaskBatch(payload, connection.send, connection.is_cancelled,
                                  tells=connection.welcome.get("unanswered") is True)
            except frames.Malformed as problem:
                log_error(f"The gateway sent a malformed batch: {problem}")
                connection.close()
                return
            if cancelled:
                batch.drop(cancelled)
            if batch.tasks:
                invoke(self._kernel, batch, connection.welcome.get("retry") is not False)


def _description() -> str:
    """Return the text of the file that DLI_MODEL_DESCRIPTION names. Raises OSError."""
    path = os.environ.get(DESCRIPTION)
    if path is None:
        return "{}"
    with open(path, encoding="utf-8") as file:
        return file.read()


class _StopSignal:
    """What SIGTERM does: a thread tells the gateway at once, even while the kernel computes."""

    def __init__(self) -> None:
        self._wake_read, self.wake = os.pipe()
        self.descriptor, self._stop_write = os.pipe()
        for descriptor in (self.wake, self._wake_read):
            os.set_blocking(descriptor, descriptor == self._wake_read)
        self.requested = False
        #: Whether tasks may be here. Before, SIGTERM ends the process at once.
        self.ready = False
        self.connection: GatewayConnection | None = None

    def watch(self) -> None:
        """Wait for the number of SIGTERM in the pipe, and leave; end with the pipe."""
        while signal.SIGTERM not in (seen := os.read(self._wake_read, 100)):
            if not seen or 0 in seen:
                return
        self.requested = True
        connection = self.connection
        if connection is not None and self.ready:
            connection.leave()
        os.write(self._stop_write, b"1")

    def handle(self, number: int, frame: Any) -> None:
        """Handle SIGTERM in the main thread. The byte is in the pipe already, unless other code set the wakeup fd."""
        if not self.ready:
            raise SystemExit(0)
        if not self.requested:
            with contextlib.suppress(OSError):
                os.write(self.wake, bytes([signal.SIGTERM]))

    def in_child(self) -> None:
        """Undo all in a process that the kernel forked: it must not hold the connection, nor stop the kernel."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.forget()

    def close(self) -> None:
        for descriptor in (self.wake, self._wake_read, self.descriptor, self._stop_write):
            os.close(descriptor)


@contextlib.contextmanager
def _stop_signal() -> Iterator[_StopSignal]:
    """Handle SIGTERM as a kernel does."""
    stop = _StopSignal()
    before = signal.signal(signal.SIGTERM, stop.handle)
    signal.set_wakeup_fd(stop.wake, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=stop.in_child)
    watcher = threading.Thread(target=stop.watch, name="kernel-stop", daemon=True)
    watcher.start()
    try:
        yield stop
    finally:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, before)
        os.write(stop.wake, b"\0")
        watcher.join()
        stop.close()
