"""What a kernel gets: the description of its model, and the tasks of a batch, which it answers."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from local_backend.inference.kernel import frames, tensors
from local_backend.inference.kernel.kernel_log import log_warn
from local_backend.inference.kernel.tensors import TensorRequest

#: Bytes as `str`: what is not UTF-8 comes back unchanged if the kernel returns it.
_ENCODING, _ERRORS = "utf-8", "surrogateescape"
#: Sends bytes to the gateway at once. Returns False if the connection is lost.
Send = Callable[[Iterable[bytes]], bool]


class KernelContext:
    """What a kernel process knows about itself and its model."""

    def __init__(self, description: str, number: str = "0") -> None:
        """`description` is model.json as JSON text, with absolute paths. `number` is that of the kernel."""
        self._description = description
        self._number = number

    def get_id(self) -> str:
        """Return the number of the kernel among those of its revision, as text."""
        return self._number

    def get_instance_id(self) -> str:
        """Return the name of the kernel process: that of the service job and the number of the kernel."""
        return os.environ.get("MSD_POD_NAME") or f"{os.environ.get('TASK_JOB_ID', 'edi')}-{self._number}"

    def get_model_description(self) -> str:
        """Return model.json as JSON text, with absolute `model_path` and `weight_path`, and `attributes` as a list."""
        return self._description


class TaskContext:
    """One request, and its answer. The tasks of a batch are a linked list."""

    __slots__ = ("__weakref__", "_batch", "_body", "_flags", "_meta", "_next", "_number", "_output", "_prev",
                 "_reply_meta", "_request", "_streamed", "_uuid")

    def __init__(self, batch: TaskBatch, number: int, body: bytes | memoryview, meta: bytes | memoryview,
                 before: TaskContext | None) -> None:
        self._batch = batch
        self._number = number
        self._body = body
        self._meta: Any = meta
        self._prev = before
        self._next: TaskContext | None = None
        #: The answer until it is sent, and the flags of its frame. `_batch` keeps the ids of answered tasks.
        self._output: bytes | None = None
        self._flags = 0
        self._reply_meta: dict[str, Any] = {}
        self._streamed = False
        self._uuid: str | None = None
        self._request: TensorRequest | None = None

    def next(self) -> TaskContext | None:
        """Return the next task of the batch, or None."""
        return self._next

    def prev(self) -> TaskContext | None:
        """Return the previous task of the batch, or None."""
        return self._prev

    def get_id(self) -> str:
        """Return the number of the task on the connection of this kernel, as text."""
        return str(self._number)

    def get_uuid(self) -> str:
        """Return a name of the task that no other task has."""
        if self._uuid is None:
            self._uuid = str(self.meta.get("uuid") or uuid.uuid4())
        return self._uuid

    def get_session_id(self) -> str:
        """Return the id of the session that the request belongs to, or "" if it belongs to none."""
        return str(self.meta.get("session", ""))

    def get_job_id(self) -> str:
        """Return the id of the service job."""
        return os.environ.get("TASK_JOB_ID", "")

    def get_version(self) -> str:
        """Return the number of the model's revision, as text."""
        return os.environ.get("REDHARE_MODEL_REVISION", "")

    def get_model_name(self) -> str:
        """Return the name of the model."""
        return os.environ.get("REDHARE_MODEL_NAME", "")

    def get_input_data(self) -> str:
        """Return the body of the request as text."""
        return str(self._body, _ENCODING, _ERRORS)

    def get_input_data_extend(self) -> bytes:
        """Return the body of the request as bytes."""
        return bytes(self._body)

    @property
    def meta(self) -> dict[str, Any]:
        """The metadata of the request: `content_type`, `session`, `deadline` (epoch seconds), `header_length`."""
        if not isinstance(self._meta, dict):
            self._meta = frames.object_of(self._meta) if self._meta else {}
        found: dict[str, Any] = self._meta
        return found

    @property
    def body(self) -> bytes | memoryview:
        """The body of the request, not copied."""
        return self._body

    @property
    def cancelled(self) -> bool:
        """Whether the client is gone, so that no answer is needed."""
        return self._batch.is_cancelled(self._number)

    def set_output_data(self, data: str | bytes) -> bool:
        """Set the answer; return True. It is sent when `on_task_invoke` returns, and at once after that. A later call
        replaces the answer if it is not sent yet. Raises TypeError."""
        if self._flags:  # `fail` was called before
            self._reply_meta.pop("status", None)
        self._answer(_bytes_of(data), 0)
        return True

    def set_output_data_extend(self, data: bytes) -> bool:
        """Set the answer as bytes: see `set_output_data`."""
        return self.set_output_data(data)

    def set_output_meta(self, content_type: str | None = None, header_length: int | None = None) -> None:
        """Set the content type of the answer, and the bytes of JSON before binary tensors. Call it before the first
        part or the answer is sent."""
        found = {"content_type": content_type, "header_length": header_length}
        self._reply_meta.update((name, value) for name, value in found.items() if value is not None)

    def fail(self, sentence: str, status: int = 500) -> None:
        """Answer with an error: a sentence and an HTTP status. See `TaskError`."""
        self._reply_meta = {"status": status}
        self._answer(_bytes_of(sentence), frames.FAILED)

    def send(self, part: str | bytes) -> bool:
        """Send a part of a streamed answer at once. Return False if the client is gone: then stop.

        The last part is what `set_output_data` gets, or empty. Raises TypeError.
        """
        return self._batch.send_part(self, _bytes_of(part))

    def report_ready(self, data: str | bytes = b"") -> bool:
        """Send `data` to the client before the task has ended: the same as `send`."""
        return self.send(data)

    def tensors(self) -> dict[str, Any]:
        """Return the inputs of an Open Inference Protocol request: name → numpy array. See docs/write-a-kernel.md.

        Raises TaskError for a request that is not valid.
        """
        return self.tensor_request().inputs

    def tensor_request(self) -> TensorRequest:
        """Return the request with tensors, whole: inputs, wanted outputs, id and parameters. Raises TaskError."""
        if self._request is None:
            self._request = tensors.read(self._body, self.meta.get("header_length"))
        return self._request

    def set_tensors(self, outputs: Any) -> bool:
        """Answer with tensors (name → numpy array, torch tensor or list), in JSON or binary form as requested.

        Raises TaskError for a value that is not a tensor.
        """
        found = tensors.write(outputs, self.tensor_request())
        kind = "application/json" if found.header_length is None else "application/octet-stream"
        self.set_output_meta(kind, found.header_length)
        return self.set_output_data(found.body)

    def unlink(self) -> None:
        """Make the task a batch of its own."""
        self._prev = self._next = None

    def _answer(self, data: bytes, flags: int) -> None:
        self._flags = flags
        self._output = data
        if self._batch.returned:
            self._batch.flush()


def _bytes_of(data: str | bytes) -> bytes:
    if isinstance(data, str):
        try:
            return data.encode(_ENCODING, _ERRORS)
        except UnicodeEncodeError:
            return data.encode(_ENCODING, "surrogatepass")
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    raise TypeError(f"an answer is a str or bytes, not {type(data).__name__}; use json.dumps for objects")


def tasks_from(task: TaskContext | None) -> Iterator[TaskContext]:
    """Yield a task and those that follow it in its batch."""
    while task is not None:
        yield task
        task = task.next()


class TaskBatch:
    """The tasks that one call of `on_task_invoke` gets."""

    def __init__(self, payload: bytes | memoryview, send: Send,
                 is_cancelled: Callable[[int], bool] = lambda number: False, *, tells: bool = False) -> None:
        """Take the payload of a BATCH frame. `tells`: name tasks that stay without an answer. Raises Malformed."""
        self._tells = tells
        self._send = send
        self.is_cancelled = is_cancelled
        self._lock = threading.Lock()
        self._answered: set[int] = set()
        #: Whether `on_task_invoke` has returned.
        self.returned = False
        self.tasks: list[TaskContext] = []
        before = None
        for number, meta, body in frames.cut_tasks(payload):
            task = TaskContext(self, number, body, meta, before)
            if before is not None:
                before._next = task
            self.tasks.append(task)
            before = task

    def drop(self, numbers: set[int]) -> None:
        """Answer and leave out the tasks with these ids, whose clients are gone."""
        for task in self.tasks:
            if task._number in numbers:
                task.fail("The request was cancelled.", 499)
        self._write(final=False)
        self.tasks = [task for task in self.tasks if task._number not in numbers]
        before = None
        for task in self.tasks:
            task._prev, task._next = before, None
            if before is not None:
                before._next = task
            before = task

    def send_part(self, task: TaskContext, part: bytes) -> bool:
        """Send a part of an answer. Return False if the client is gone."""
        with self._lock:
            if task._number in self._answered:
                log_warn(f"Task {task._number} is already answered: a part of {len(part)} bytes is not sent.")
                return False
            meta = {} if task._streamed else task._reply_meta
            flags = frames.MORE | (frames.HAS_META if meta else 0)
            task._streamed = True
            sent = self._send((frames.reply_front(task._number, flags, meta, len(part)), part))
        return sent and not self.is_cancelled(task._number)

    def finish(self) -> None:
        """Send all answers that are set, in one write, and end the streams. Later answers are sent at once."""
        self.returned = True
        self._write(final=True)

    def flush(self) -> None:
        """Send the answers that were set after `on_task_invoke` returned."""
        self._write(final=False)

    def untouched(self) -> list[TaskContext]:
        """Return the tasks that have neither an answer nor a part of one."""
        return [task for task in self.tasks
                if task._output is None and not task._streamed and task._number not in self._answered]

    def fail_rest(self, sentence: str, status: int = 500) -> None:
        """Let the tasks without an answer fail with a sentence. `finish` sends it."""
        for task in self.tasks:
            if task._output is None and task._number not in self._answered:
                task.fail(sentence, status)

    def _write(self, final: bool) -> None:
        parts: list[bytes] = []
        with self._lock:
            for task in self.tasks:
                output = task._output
                if output is None and final and task._streamed:
                    output = b""
                if output is None:
                    continue
                task._output = None
                if task._number in self._answered:
                    log_warn(f"Task {task._number} is already answered: a second answer is not sent.")
                    continue
                self._answered.add(task._number)
                # The parts have carried the metadata; an error replaces it.
                meta = {} if task._streamed and not task._flags & frames.FAILED else task._reply_meta
                flags = task._flags | (frames.HAS_META if meta else 0)
                parts += (frames.reply_front(task._number, flags, meta, len(output)), output)
            if final and self._tells:
                silent = [task._number for task in self.tasks if task._number not in self._answered]
                if silent:
                    parts.append(frames.unanswered(silent))
            if parts:
                self._send(parts)
