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

from dlicmd.contract import wire
from dlicmd.sdk.calls import (
    ACCEPTED,
    BAD_REQUEST,
    JSON,
    REFUSED,
    a_list,
    an_object,
    checked,
    checked_token,
    refused,
)
from dlicmd.sdk.errors import Denied, ServerError, SubmissionRefused
from dlicmd.sdk.exec_calls import ExecCalls
from dlicmd.sdk.objects import Exec, News, Preview
from dlicmd.sdk.scheduler_calls import SchedulerCalls
from dlicmd.sdk.search_calls import SearchCalls
from dlicmd.sdk.transport import READ_TIMEOUT, Request

if TYPE_CHECKING:
    from dlicmd.sdk.submission import SubmitOptions

#: Seconds that a preview of data sources may take.
PREVIEW_TIMEOUT = 660.0


class Client(ExecCalls, SchedulerCalls, SearchCalls):
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
