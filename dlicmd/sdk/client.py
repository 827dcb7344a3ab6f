"""The REST contract as Python: one method per call. This is the public SDK. The commands use nothing else.

    from dlicmd import Client

    with Client() as client:                      # the local backend; starts it if it does not run
        for run in client.execs("state=RUNNING"):
            print(run.id, run.state)
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from dlicmd.contract import wire
from dlicmd.contract.reading import objects
from dlicmd.sdk.calls import (
    ACCEPTED,
    BAD_REQUEST,
    JSON,
    REFUSED,
    STOP,
    SUBMIT_TIMEOUT,
    TEXT,
    a_list,
    an_object,
    checked,
    checked_token,
    refused,
)
from dlicmd.sdk.errors import ConnectionLost, Denied, ServerError, SubmissionRefused
from dlicmd.sdk.metrics import records
from dlicmd.sdk.objects import (
    Code,
    Exec,
    Framework,
    Line,
    News,
    Preview,
    Why,
)
from dlicmd.sdk.retry import PASSING
from dlicmd.sdk.scheduler_calls import SchedulerCalls
from dlicmd.sdk.search_calls import SearchCalls
from dlicmd.sdk.transport import READ_TIMEOUT, Answer, Multipart, Request

if TYPE_CHECKING:
    from dlicmd.sdk.submission import SubmitOptions

#: Seconds between two chunks of a result: the server may pack the result before the first chunk.
RESULT_TIMEOUT = 300.0
#: Seconds that a preview of data sources may take.
PREVIEW_TIMEOUT = 660.0
LOG_TYPES = ("outerrlog", "outlog", "errlog")


class Client(SchedulerCalls, SearchCalls):
    """Call the methods of one server, or of the local backend.

    The client repeats a call if the connection breaks or the server is overloaded. The client does not repeat a call
    that the server could then execute twice. The client reports each repetition on standard error. Use a client from
    one thread at a time.

    Every method that sends a request raises these errors, so the methods list only further errors:

    - `Unreachable` if no complete answer arrives. `ConnectFailed`: the request was not sent. `ConnectionLost`: the
      request may have been sent. `BackendNotStarted`: the local backend could not be started.
    - `Denied` if the server requires a logon (HTTP 401), or does not permit the call (HTTP 403).
    - `ServerError` for any other error answer, and for an answer that is not the expected JSON. If the server lacks an
      extension that the method needs, the error answer has a status such as 404.

    Examples:
        >>> with Client("dli.example.com", 9443, token=TOKEN) as client:
        ...     for run in client.execs("state=RUNNING"):
        ...         print(run.id, run.num_worker)
    """

    # Authentication, configuration

    def use_token(self, token: str) -> None:
        """Send a token with all later calls.

        The local backend has its own token and ignores this one.

        Args:
            token: Bearer token, for example from `logon`. The token is sent as given.
        """
        self._token = token

    def logon(self, username: str, password: str) -> dict[str, Any]:
        """Log on with a user name and a password.

        Later calls of this client send the token of the answer.

        Args:
            username: Name of the user, without a colon.
            password: Password of the user.

        Returns:
            The JSON object of the server's answer. The key `accessToken` has the token.

        Raises:
            Denied: The server refuses the user name or the password (HTTP 400, 401 or 403), or sends a token that no
                HTTP header can carry.
            ServerError: The answer contains no `accessToken`.
        """
        basic = base64.b64encode(f"{username}:{password}".encode()).decode()
        answer = self._transport.send(
            Request("GET", wire.LOGON, {"Authorization": f"Basic {basic}", "Accept": ACCEPTED},
                    timeout=self._timeout or READ_TIMEOUT, final=True))
        if answer.status in REFUSED:
            raise refused(Denied, "the server refused the logon", answer)
        found = an_object(checked(answer, "the logon"))
        token = found.get(wire.ACCESS_TOKEN)
        if not isinstance(token, str) or not token:
            raise ServerError("the server's answer to the logon contains no accessToken", answer.status, answer.code)
        self._token = checked_token(token, "the server's answer")
        return found

    def logoff(self) -> str:
        """Revoke the token of this client.

        Returns:
            The text of the server's answer.
        """
        return self._call("POST", wire.LOGOFF).text()

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

    def execs(self, query: str | None = None) -> list[Exec]:
        """Return your execs.

        An administrator of the local backend gets the execs of all users if the query has `all=true`.

        Args:
            query: Query of the URL: `state` (states with commas between them), `limit` (number of execs) and `sort_by`
                (`FIELD:asc` or `FIELD:desc`). The query is only escaped for the URL. None selects all execs.

        Returns:
            The execs in the order of the query. Without `sort_by`, the server chooses the order.

        Raises:
            QueryRefused: The server refuses the query (HTTP 400).

        Examples:
            >>> newest = client.execs("limit=10&state=FINISHED&sort_by=id:desc")
        """
        return [Exec(one) for one in a_list(self._listed(f"{wire.EXECS}/", query))]

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
        if answer.status == BAD_REQUEST:
            raise refused(SubmissionRefused, "the server refused the submission", answer)
        return Exec(an_object(checked(answer, "the submission")))

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
        return Exec(an_object(self._exec_call("GET", exec_id, "show {}")))

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

        The local backend deploys no models and refuses the call (HTTP 501).

        Args:
            exec_id: Id of the exec.
            asked: The deployment: texts under `name`, `runtime`, `kernel`, `weight` and `tag`, and mappings under
                `attributes` and `environments`. The dictionary is sent as JSON, unchanged.

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
        headers = {"Accept-Encoding": "identity"} | (
            {"Range": f"bytes={start}-", "If-Range": etag} if start and etag else {})
        return self._exec_call(
            "GET", exec_id, "return the result of {}", "result", accept="application/octet-stream", headers=headers,
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

    # Whole jobs. Their modules pack, hash and unpack: a start of dlicmd for another command must not import them.

    def submit(self, framework: str, options: SubmitOptions, program: Sequence[str] = ()) -> Exec:
        """Submit a job, as `dlicmd --exec-start` does.

        The client checks the options and packs the files before it sends the first request.

        Args:
            framework: Name of a framework, such as `PyTorch`. `frameworks` returns all.
            options: Options by name, without dashes; see `SubmitOptions`. True sets a flag, False leaves the flag out.
                A list gives a repeatable option several times.
            program: Arguments for the program, one list item for each word. With the option `user-cmd`, the command
                itself.

        Returns:
            The new exec.

        Raises:
            UsageProblem: An option is unknown, a value is wrong, no program is named, or a file does not exist.
            PackageError: A file cannot be read, or the archive cannot be written.
            SubmissionRefused: The server refuses the submission (HTTP 400).
            ConnectionLost: The connection broke during the upload; the server may have accepted the exec.
            ServerError: The answer contains no `id` or no `appId`.
            DlicmdError: The option `pbmodel-name` is given, but the local backend has no prebuilt models.

        Examples:
            >>> options = {"model-dir": "model", "model-main": "train.py", "numWorker": 2}
            >>> run = client.submit("PyTorch", options, ["--epochs", "2"])
        """
        from dlicmd.sdk.submission import Submission
        from dlicmd.sdk.submit import submit

        return submit(self, Submission.of(framework, options, program))

    def watch(self, exec_id: str, timeout: int | None = None) -> Iterator[News]:
        """Yield an exec with its new output until the exec has ended.

        The iteration also ends if the exec can never be scheduled: `Exec.is_over` is True then. A server that becomes
        unreachable after the first answer is tried again for 120 s.

        Args:
            exec_id: Id of the exec.
            timeout: Seconds from this call until WaitTimeout. None waits without a limit.

        Yields:
            The exec, and the lines of output since the previous item. Nothing is sent before the first item is
                requested.

        Raises:
            NoSuchExec: No exec has this id.
            WaitTimeout: The exec has not ended after `timeout` seconds. The exec continues.

        Examples:
            >>> for news in client.watch("wmla-1", timeout=600):
            ...     for line in news.lines:
            ...         print(line.text)
        """
        from dlicmd.sdk.follow import Clock, watch

        return watch(self, exec_id, Clock(exec_id, timeout))

    def wait(self, exec_id: str, timeout: int | None = None) -> Exec:
        """Wait until an exec has ended, and return the exec.

        The wait also ends if the exec can never be scheduled: `Exec.is_over` is True then, and `Exec.has_ended` is
        False. A server that becomes unreachable after the first answer is tried again for 120 s.

        Args:
            exec_id: Id of the exec.
            timeout: Seconds from this call until WaitTimeout. None waits without a limit.

        Returns:
            The exec in its last state.

        Raises:
            NoSuchExec: No exec has this id.
            WaitTimeout: The exec has not ended after `timeout` seconds. The exec continues.
        """
        from dlicmd.sdk.follow import Clock, wait

        return wait(self, exec_id, Clock(exec_id, timeout))

    def fetch_result(self, exec_id: str, folder: str | Path = ".", force: bool = False) -> Path:
        """Store the trained model as a zip, and return its path.

        The client compares the zip with the checksum of the server. An interrupted download is kept, and the next call
        resumes it. A file that already has exactly these bytes is not fetched again.

        Args:
            exec_id: Id of the exec.
            folder: Existing folder for the zip. The default is the current folder. The server chooses the name of the
                file.
            force: Whether to overwrite another regular file with that name.

        Returns:
            The path of the zip in `folder`.

        Raises:
            UsageProblem: `folder` does not exist, or is not a folder.
            NoSuchExec: No exec has this id.
            ServerError: The exec has no result.
            ResultError: The zip is damaged or cannot be stored, or another file with its name exists.
        """
        from dlicmd.sdk.results import check_folder, fetch

        return fetch(self, exec_id, check_folder(str(folder)), force)

    def preview(self, sources: Sequence[Mapping[str, Any]]) -> list[Preview]:
        """Return the contents of data sources (extension `data-preview`).

        The server has 660 s to answer, unless the client has its own `timeout`.

        Args:
            sources: Data sources as JSON objects, at most 10, such as `{"type": "fs", "location": {"paths": "mnist"}}`.

        Returns:
            Previews in the order of the data sources, one for each path on the server. A data source that cannot be
                read is not an error: its preview has `ok` False and the reason in `message`.

        Raises:
            SubmissionRefused: The server refuses the data sources (HTTP 400).
        """
        body = json.dumps({wire.DATA_SOURCE: list(sources)}).encode()
        answer = self._send("POST", wire.DATA_PREVIEW, {"Content-Type": JSON}, body, PREVIEW_TIMEOUT)
        if answer.status == BAD_REQUEST:
            raise refused(SubmissionRefused, "the server refused", answer)
        return [Preview(one) for one in a_list(checked(answer, "to preview the data"))]


def _line(line: Mapping[str, Any]) -> Line:
    return Line(str(line.get(wire.TEXT, "")), str(line.get(wire.TASK, "")), str(line.get(wire.STREAM, "stdout")))
