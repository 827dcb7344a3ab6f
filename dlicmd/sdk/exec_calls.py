"""The calls about a server and its execs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from dlicmd.contract import wire
from dlicmd.contract.reading import objects
from dlicmd.sdk.calls import (
    BAD_REQUEST,
    JSON,
    STOP,
    SUBMIT_TIMEOUT,
    TEXT,
    Calls,
    a_list,
    an_object,
    checked,
    refused,
)
from dlicmd.sdk.errors import ConnectionLost, NeverSchedulable, ServerError, SubmissionRefused
from dlicmd.sdk.metrics import records
from dlicmd.sdk.objects import Code, Curve, Exec, Execs, Files, Framework, Line, News, Why
from dlicmd.sdk.retry import PASSING
from dlicmd.sdk.transport import READ_TIMEOUT, Answer, Multipart, Request

#: Seconds between two chunks of a result: the server may pack the result before the first chunk.
RESULT_TIMEOUT = 300.0
LOG_TYPES = ("outerrlog", "outlog", "errlog")


class ExecCalls(Calls):
    """Calls about the server and its execs."""

    def conf(self) -> dict[str, Any]:
        """Return the configuration of the server.

        Returns:
            Values by name, as the server sent them. `DLICMD_EXTENSIONS` has the names of the extensions, with commas
                between them; servers without extensions leave the key out.
        """
        return an_object(self._call("GET", wire.CONF))

    def extensions(self) -> frozenset[str]:
        """Return the names of the extensions that the server offers.

        `docs/rest-extensions.md` lists the extensions. Each call of this method asks the server.

        Returns:
            Names such as `follow` and `why`. The set is empty for a server without extensions.
        """
        named = str(self.conf().get(wire.EXTENSIONS, ""))
        self._extensions = frozenset(name.strip() for name in named.split(",") if name.strip())
        return self._extensions

    def status(self) -> str:
        """Return the status of the server.

        Returns:
            The text of the server's answer. The local backend sends a JSON object with the keys `version`, `uptime`
                (seconds) and `jobs` (number of execs by state), among others.
        """
        return self._call("GET", wire.STATUS).text()

    def frameworks(self) -> list[Framework]:
        """Return the frameworks that `submit` accepts."""
        return [Framework(one) for one in a_list(self._call("GET", wire.FRAMEWORKS))]

    # Execs

    def execs(self, query: str | None = None) -> Execs:
        """Return your execs.

        An administrator of the local backend gets the execs of all users if the query has `all=true`.

        Args:
            query: Query of the URL: `state` (states with commas between them), `limit` (number of execs) and `sort_by`
                (`FIELD:asc` or `FIELD:desc`). The query is only escaped for the URL. None selects all execs.

        Returns:
            The execs in the order of the query. Without `sort_by`, the server chooses the order. `total` is their
                number without the limit, if the server counts them.

        Raises:
            QueryRefused: The server refuses the query (HTTP 400).

        Examples:
            >>> newest = client.execs("limit=10&state=FINISHED&sort_by=id:desc")
        """
        answer = self._listed(f"{wire.EXECS}/", query, {wire.PREFER: wire.DETAILS})
        found = [Exec(one) for one in a_list(answer)]
        return Execs(found, _total(answer.headers.get(wire.TOTAL.lower()), len(found)))

    def start_exec(self, args: str, body: Multipart | str | None = None, *, strict: bool = True) -> Exec:
        """Submit an exec from a command line and a body, as the contract defines it.

        `submit` is simpler: that method packs the model folder and renders the command line. If a submission may have
        arrived, the client sends the submission again only if the server has the extension `idempotency-key`. The
        server has 900 s to answer, unless the client has its own `timeout`.

        Args:
            args: Command line, such as `--exec-start PyTorch --model-main train.py`, quoted as for a shell.
            body: Files and fields to upload; or the text of the `data` part alone (JSON); or None for no body.
            strict: Whether the local backend refuses what it cannot run, and data paths that do not exist. False: it
                answers as the recorded server did, with an exec that ends ERROR, or an empty folder for the data.

        Returns:
            The exec as the server created it.

        Raises:
            SubmissionRefused: The server refuses the submission (HTTP 400).
            ConnectionLost: The server may have accepted the submission, but its answer was lost.
        """
        offered = self.extensions() if self._extensions is None else self._extensions
        request = self.submission(args, body, strict=strict)._replace(keyed=wire.EXT_IDEMPOTENCY in offered)
        answer = self._transport.send(request)
        if answer.repeated and answer.status in PASSING:
            raise ConnectionLost(f"an answer was lost, then the server was unavailable (HTTP {answer.status})")
        _check_accepted(answer)
        return Exec(an_object(checked(answer, "the submission")))

    def check_exec(self, args: str, data: str | None = None) -> None:
        """Ask the server whether it would refuse a submission, before its files are packed and sent (extension
        `check`).

        Args:
            args: Command line, as for `start_exec`.
            data: Text of the `data` part (JSON), or None.

        Raises:
            SubmissionRefused: The server refuses the command line or the data (HTTP 400).
            NeverSchedulable: The job can never run on this server.
        """
        sent = b"" if data is None else urlencode({wire.PART_DATA: data}).encode()
        headers = {"Content-Type": "application/x-www-form-urlencoded", wire.PREFER: wire.STRICT}
        target = f"{wire.CHECK}?{wire.ARGS}={quote(args, safe='')}"
        request = self._request("POST", target, headers, sent, READ_TIMEOUT)
        answer = self._transport.send(request._replace(harmless=True))
        _check_accepted(answer)
        checked(answer, "the submission")

    def submission(self, args: str, body: Multipart | str | None = None, *, strict: bool = True) -> Request:
        """Return the request that `start_exec` sends, without sending it.

        Args:
            args: Command line, as for `start_exec`.
            body: Files and fields, the text of the `data` part, or None, as for `start_exec`.
            strict: As for `start_exec`.

        Returns:
            The request, with a new idempotency key in the header `Idempotency-Key`.
        """
        import uuid  # takes 20 ms, for submissions alone

        sent: bytes | Multipart | None
        if isinstance(body, str):
            sent = urlencode({wire.PART_DATA: body}).encode()
            headers = {"Content-Type": "application/x-www-form-urlencoded"}
        else:
            sent = body
            headers = {"Content-Type": body.content_type} if body is not None else {"Content-Length": "0"}
        headers[wire.KEY_HEADER] = f'"{uuid.uuid4()}"'
        if strict:
            headers[wire.PREFER] = wire.STRICT
        target = f"{wire.EXECS}/?" + f"{wire.ARGS}={quote(args, safe='')}"
        return self._request("POST", target, headers, sent, SUBMIT_TIMEOUT)

    def exec(self, exec_id: str) -> Exec:
        """Return one exec.

        Args:
            exec_id: Id of the exec, such as `wmla-1`.

        Raises:
            NoSuchExec: No exec has this id.

        Examples:
            >>> client.exec("wmla-1").state
            'RUNNING'
        """
        return Exec(an_object(self._exec_call("GET", exec_id, "show {}", headers={wire.PREFER: wire.DETAILS})))

    def stop_exec(self, exec_id: str) -> int:
        """Ask the server to stop an exec.

        Args:
            exec_id: Id of the exec.

        Returns:
            The HTTP status of the success answer, such as 204.

        Raises:
            NoSuchExec: No exec has this id.
            ServerError: The server refuses to stop the exec, for example because the exec has ended.
        """
        return self._exec_call("POST", exec_id, "stop {}", STOP).status

    def resize_exec(self, exec_id: str, slots: int | None) -> dict[str, Any]:
        """Change the number of slots of a running elastic exec (extension `slots`).

        Args:
            exec_id: Id of the exec.
            slots: Number of slots to fix. 0 parks the exec. None returns the decision to the scheduler.

        Returns:
            The JSON object of the answer: `id`, and the number of slots `before` and now (`slots`).

        Raises:
            NoSuchExec: No exec has this id.
            Denied: The user is no administrator.
            ServerError: The exec cannot be resized (HTTP 409), or the number is not possible (HTTP 400).
        """
        body = json.dumps({wire.SLOTS: slots}).encode()
        return an_object(self._exec_call(
            "PUT", exec_id, "resize {}", wire.SLOTS, headers={"Content-Type": JSON}, body=body))

    def why(self, exec_id: str) -> Why:
        """Return the reason why an exec is pending.

        For a server without the extension `why`, the result has only the id, the state and the message of the exec.

        Args:
            exec_id: Id of the exec.

        Returns:
            The resources that the exec lacks, the execs that hold slots, and advice.

        Raises:
            NoSuchExec: No exec has this id.
        """
        if wire.EXT_WHY in self.extensions():
            return Why(an_object(self._exec_call("GET", exec_id, "explain the state of {}", "why")))
        found = self.exec(exec_id)
        return Why({name: found[name] for name in (wire.ID, wire.STATE, wire.MESSAGE) if name in found})

    def verify_exec(self, exec_id: str, steps: int = 20) -> Exec:
        """Submit an elastic exec again to verify its first steps (extension `verify`).

        The new exec computes the steps with two numbers of workers. The new exec ends FINISHED if the results are
        equal, otherwise ERROR.

        Args:
            exec_id: Id of the elastic exec.
            steps: Number of committed steps to compute, from 1 to 1,000,000.

        Returns:
            The new exec.

        Raises:
            NoSuchExec: No exec has this id.
            ServerError: The exec is not elastic, or its submitted code is no longer stored.
        """
        query = f"steps={steps}"
        return Exec(an_object(self._exec_call(
            "POST", exec_id, "verify {}", "verify", query, timeout=SUBMIT_TIMEOUT)))

    def run_again(
        self, exec_id: str, *, name: str | None = None, workers: int | None = None,
        arguments: Sequence[str] | None = None, data: Sequence[Mapping[str, Any]] | None = None,
    ) -> Exec:
        """Submit an exec once more as a new exec, with the same code, data and environment (extension `again`).

        Args:
            exec_id: Id of the exec.
            name: Name of the new exec. By default that of the exec.
            workers: Number of workers, for an elastic exec the maximum. By default that of the exec.
            arguments: All words of the program after its name; for a command, the whole command. By default those of
                the exec.
            data: Data sources, as `--data-source` takes them. By default those of the exec.

        Returns:
            The new exec.

        Raises:
            NoSuchExec: No exec has this id.
            ServerError: The exec cannot be repeated, or a change is not possible.
        """
        changes = {"name": name, "workers": workers, "arguments": None if arguments is None else list(arguments),
                   wire.DATA_SOURCE: None if data is None else list(data)}
        body = json.dumps({key: value for key, value in changes.items() if value is not None}).encode()
        return Exec(an_object(self._exec_call(
            "POST", exec_id, "repeat {}", "again", headers={"Content-Type": JSON}, body=body, timeout=SUBMIT_TIMEOUT)))

    def delete_exec(self, exec_id: str) -> int:
        """Delete an exec and its files.

        Args:
            exec_id: Id of the exec. The local backend stops a running exec first.

        Returns:
            The HTTP status of the success answer, such as 204.

        Raises:
            NoSuchExec: No exec has this id.
        """
        return self._exec_call("DELETE", exec_id, "delete {}").status

    def deploy_exec(self, exec_id: str, asked: dict[str, Any]) -> Answer:
        """Deploy the trained model of an exec.

        The files of kernel and weights are those of the exec: of its result, then of its submitted code.

        Args:
            exec_id: Id of the exec.
            asked: The deployment: texts under `kernel` (a file, or the name of a ready-made kernel), `name`,
                `runtime`, `weight` and `tag`, and mappings under `attributes` and `environments`. The dictionary is
                sent as JSON, unchanged.

        Returns:
            The success answer.

        Raises:
            NoSuchExec: No exec has this id.
        """
        return self._exec_call("POST", exec_id, "deploy {}", wire.DEPLOY, headers={"Content-Type": JSON},
                               body=json.dumps(asked).encode(), timeout=SUBMIT_TIMEOUT)

    def delete_execs(self) -> int:
        """Delete all your execs and their files.

        Returns:
            The HTTP status of the success answer, such as 204.
        """
        return self._call("DELETE", wire.EXECS).status

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


def _total(text: str | None, least: int) -> int:
    """Return the number of items of a list without its limit: at least the items that were sent."""
    return max(least, int(text)) if text is not None and re.fullmatch("[0-9]{1,18}", text) else least


def _check_accepted(answer: Answer) -> None:
    """Raise SubmissionRefused or NeverSchedulable if the server refuses a submission (HTTP 400)."""
    if answer.status == BAD_REQUEST:
        kind = NeverSchedulable if answer.code == NeverSchedulable.code else SubmissionRefused
        raise refused(kind, "the server refused the submission", answer)
