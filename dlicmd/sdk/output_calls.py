"""The calls about what an exec writes: its logs, results, metrics and curves, and its code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from dlicmd.contract import wire
from dlicmd.contract.reading import objects
from dlicmd.sdk.calls import TEXT, Calls, an_object
from dlicmd.sdk.errors import ServerError
from dlicmd.sdk.metrics import records
from dlicmd.sdk.objects import Code, Curve, Exec, Files, Line, News
from dlicmd.sdk.transport import Answer

#: Seconds between two chunks of a result: the server may pack the result before the first chunk.
RESULT_TIMEOUT = 300.0
LOG_TYPES = ("outerrlog", "outlog", "errlog")


class OutputCalls(Calls):
    """Calls about what the program of an exec writes."""

    def train_log(self, exec_id: str, log_type: str = LOG_TYPES[0]) -> Answer:
        """Return the output of the program.

        The answer arrives in chunks. Other calls of this client are possible in the meantime.

        Args:
            exec_id: Id of the exec.
            log_type: `outlog` for standard output, `errlog` for standard error, or `outerrlog` for both.

        Returns:
            The answer with the output as text: `text()` for the whole text, `chunks()` for pieces.

        Raises:
            NoSuchExec: No exec has this id.

        Examples:
            >>> for chunk in client.train_log("wmla-1").chunks():
            ...     sys.stdout.buffer.write(chunk)
        """
        query = f"logType={quote(log_type, safe='')}"
        return self._exec_call(
            "GET", exec_id, "return the log of {}", "log", query, accept=TEXT, streamed=True)

    def log_text(
        self, exec_id: str, *, tail: int | None = None, since: float | None = None, worker: int | None = None,
        grep: Sequence[str] = (), timestamps: bool = False, cursor: str | None = None,
    ) -> Answer:
        """Return lines of the output of the program as text (extension `log-lines`).

        `log_lines` returns the same lines as objects.

        Args:
            exec_id: Id of the exec.
            tail: Number of last lines. None stands for all lines.
            since: Time in epoch seconds: only lines written since then.
            worker: Number of a worker, from 1: only its output. 0 stands for the driver. None stands for the output
                that `follow` returns.
            grep: Texts: only lines that contain one of them. An empty list selects all lines.
            timestamps: Whether each line begins with its time, its task and its stream.
            cursor: Header `x-dli-cursor` of an earlier answer: only lines after it. An empty text stands for the
                beginning. With a cursor, a last line that is not complete is left out while the exec runs.

        Returns:
            The answer with the lines, in the order of their times.

        Raises:
            NoSuchExec: No exec has this id.
            ServerError: The exec has no such worker, or the server did not issue the cursor.
        """
        given: dict[str, object] = {
            wire.TAIL: tail, wire.SINCE: since, wire.WORKER: worker, wire.GREP: list(grep), wire.CURSOR: cursor,
            wire.TIMESTAMPS: "true" if timestamps else None,
        }
        query = urlencode({name: value for name, value in given.items() if value is not None}, doseq=True)
        return self._exec_call("GET", exec_id, "return the output of {}", wire.LINES, query, accept=TEXT, streamed=True)

    def log_lines(
        self, exec_id: str, *, tail: int | None = None, since: float | None = None, worker: int | None = None,
        grep: Sequence[str] = (),
    ) -> Iterator[Line]:
        """Yield lines of the output of the program, with their times (extension `log-lines`).

        Args:
            exec_id: Id of the exec.
            tail: As for `log_text`.
            since: As for `log_text`.
            worker: As for `log_text`.
            grep: As for `log_text`.

        Yields:
            The lines, in the order of their times.

        Raises:
            NoSuchExec: No exec has this id.
            ServerError: The exec has no such worker.

        Examples:
            >>> for line in client.log_lines("wmla-1", tail=20):
            ...     print(line.time, line.text)
        """
        answer = self.log_text(exec_id, tail=tail, since=since, worker=worker, grep=grep, timestamps=True)
        return (stamped(line) for line in answer.lines())

    def result(self, exec_id: str, start: int = 0, etag: str = "") -> Answer:
        """Return the trained model as a zip.

        `fetch_result` stores and checks the zip. This method gives the bytes as they arrive. The server may be silent
        for 300 s between two chunks, unless the client has its own `timeout`.

        Args:
            exec_id: Id of the exec.
            start: Number of bytes to leave out at the beginning. Has an effect only together with `etag`.
            etag: Header `etag` of an earlier answer. The rest is requested on condition that the result still has this
                ETag. Has an effect only together with `start`.

        Returns:
            The answer with the zip. Status 206: the bytes from `start` on. Status 200: the whole zip.

        Raises:
            NoSuchExec: No exec has this id.
            ServerError: The exec has no result, or the result has no bytes from `start` on (HTTP 416).
        """
        return self._part_call(exec_id, "return the result of {}", "result", start=start, etag=etag)

    def files(self, exec_id: str) -> Files:
        """Return the files that the program wrote, so far if the exec is running (extension `files`).

        Args:
            exec_id: Id of the exec.

        Returns:
            The files below RESULT_DIR and below the working directory of the program. Submitted files without a change,
                links, and the output that `train_log` returns are left out.

        Raises:
            NoSuchExec: No exec has this id.

        Examples:
            >>> [file.path for file in client.files("wmla-1").files]
            ['checkpoints/best.pt', 'model/weights.bin']
        """
        return Files(an_object(self._exec_call("GET", exec_id, "list the files of {}", "files")))

    def file(self, exec_id: str, path: str, start: int = 0, etag: str = "") -> Answer:
        """Return a file that the program wrote (extension `files`).

        `fetch_file` stores and checks the file. This method gives the bytes as they arrive. The server may be silent
        for 300 s between two chunks, unless the client has its own `timeout`.

        Args:
            exec_id: Id of the exec.
            path: Path of the file, as `files` returns it.
            start: Number of bytes to leave out at the beginning. Has an effect only together with `etag`.
            etag: Header `etag` of an earlier answer, as for `result`.

        Returns:
            The answer with the file. Status 206: the bytes from `start` on. Status 200: the whole file.

        Raises:
            NoSuchExec: No exec has this id.
            ServerError: The program wrote no such file, or the file has no bytes from `start` on (HTTP 416).
        """
        query = urlencode({wire.PATH: path})
        return self._part_call(
            exec_id, "return a file of {}", f"{wire.FILES}/{wire.CONTENT}", query, start=start, etag=etag)

    def _part_call(
        self, exec_id: str, doing: str, action: str, query: str = "", *, start: int, etag: str,
    ) -> Answer:
        headers = {"Accept-Encoding": "identity"} | (
            {"Range": f"bytes={start}-", "If-Range": etag} if start and etag else {})
        return self._exec_call(
            "GET", exec_id, doing, action, query, accept="application/octet-stream", headers=headers,
            timeout=RESULT_TIMEOUT, streamed=True)

    def follow(self, exec_id: str, cursor: str = "", wait: int = 0) -> News:
        """Return an exec with its new output (extension `follow`).

        `watch` does the same for every server, and repeats the call until the exec has ended.

        Args:
            exec_id: Id of the exec.
            cursor: `News.cursor` of the previous call. An empty text requests the output from the beginning.
            wait: Seconds for which the server may wait for news. The local backend waits at most 30 s. 0 returns at
                once.

        Returns:
            The exec, its output since `cursor`, and the cursor for the next call.

        Raises:
            NoSuchExec: No exec has this id.
            ServerError: The server did not issue the cursor, or sent an invalid answer.

        Examples:
            >>> news = client.follow("wmla-1", wait=20)
            >>> news = client.follow("wmla-1", news.cursor, wait=20)
        """
        query = urlencode({wire.CURSOR: cursor, "wait": wait} if cursor else {"wait": wait})
        answer = an_object(self._exec_call("GET", exec_id, "follow {}", "follow", query, timeout=30.0, held=wait))
        found, lines = answer.get(wire.EXEC), answer.get(wire.LINES)
        if not isinstance(found, dict) or not isinstance(lines, list):
            raise ServerError("the server sent an invalid answer to the follow call", 200)
        return News(Exec(found), [_line(line) for line in objects(lines)], str(answer.get(wire.CURSOR, "")))

    def metrics(self, exec_id: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the metrics that the program recorded, as they arrive (extension `metrics`).

        The request is sent at once. Other calls of this client are possible while the records arrive. Lines that are
        not JSON objects are left out.

        Args:
            exec_id: Id of the exec.

        Yields:
            The number of a file, from 1, and one record of that file. Each process of the exec writes its own file. A
                record is the JSON object of one line, as the program wrote it.

        Raises:
            NoSuchExec: No exec has this id.
            ConnectionLost: The connection breaks while the records arrive.

        Examples:
            >>> for file, record in client.metrics("wmla-1"):
            ...     print(file, record["values"])
        """
        answer = self._exec_call(
            "GET", exec_id, "return the metrics of {}", "metrics", accept=TEXT, streamed=True)
        return records(answer.chunks())

    def curves(self, exec_id: str, metrics: Sequence[str] = ()) -> list[Curve]:
        """Return the metrics of a program as curves (extension `curves`).

        The server finds them in calls of `dlicmd.log`, in the files of loggers such as TensorBoard, and in the output.

        Args:
            exec_id: Id of the exec.
            metrics: Names of curves. Without names, all curves.

        Returns:
            The curves. Servers without the extension have none.

        Raises:
            NoSuchExec: No exec has this id.

        Examples:
            >>> for curve in client.curves("wmla-1", ["loss"]):
            ...     print(curve.name, curve.points[-1])
        """
        if wire.EXT_CURVES not in self.extensions():
            return []
        query = urlencode([(wire.METRIC, name) for name in metrics])
        answer = an_object(self._exec_call("GET", exec_id, "return the curves of {}", "curves", query))
        return [Curve(one) for one in objects(answer.get(wire.CURVES))]

    def resources(self, exec_id: str) -> list[Curve]:
        """Return the CPU cores, the memory and the GPUs that an exec used over time (extension `resources`).

        Args:
            exec_id: Id of the exec.

        Returns:
            The curves over the seconds since the exec first ran: `cpu` in cores, `memory` in bytes, `gpu` in GPUs and
            `gpu-memory` in bytes; also those of each of several processes or GPUs, such as `cpu worker 1`. Servers
            without the extension have none.

        Raises:
            NoSuchExec: No exec has this id.

        Examples:
            >>> memory = [curve for curve in client.resources("wmla-1") if curve.name == "memory"]
        """
        if wire.EXT_RESOURCES not in self.extensions():
            return []
        answer = an_object(self._exec_call("GET", exec_id, "return the resources of {}", "resources"))
        return [Curve(one) for one in objects(answer.get(wire.CURVES))]

    def code(self, exec_id: str) -> Code:
        """Return the submitted files (extension `code`).

        Args:
            exec_id: Id of the exec.

        Returns:
            The files with their present content. Files that were removed since the submission are left out.

        Raises:
            NoSuchExec: No exec has this id.
        """
        return Code(an_object(self._exec_call("GET", exec_id, "return the code of {}", "code")))


def stamped(line: str) -> Line:
    """Return the line that the server sent with its time, task and stream."""
    time, task, stream, text = (*line.split(" ", 3), "", "", "")[:4]
    return Line(text, task, stream, time)


def _line(line: Mapping[str, Any]) -> Line:
    return Line(str(line.get(wire.TEXT, "")), str(line.get(wire.TASK, "")), str(line.get(wire.STREAM, "stdout")))
