"""The calls about a server and its execs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from dlicmd.contract import wire
from dlicmd.sdk.calls import BAD_REQUEST, JSON, STOP, SUBMIT_TIMEOUT, a_list, an_object, checked, refused
from dlicmd.sdk.errors import ConnectionLost, NeverSchedulable, SubmissionRefused
from dlicmd.sdk.objects import Exec, Execs, Framework, Why
from dlicmd.sdk.output_calls import OutputCalls
from dlicmd.sdk.retry import PASSING
from dlicmd.sdk.transport import READ_TIMEOUT, Answer, Multipart, Request


class ExecCalls(OutputCalls):
    """Calls about the server and its execs."""

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
            Denied: The user is not an administrator.
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


def _total(text: str | None, least: int) -> int:
    """Return the number of items of a list without its limit: at least the items that were sent."""
    return max(least, int(text)) if text is not None and re.fullmatch("[0-9]{1,18}", text) else least


def _check_accepted(answer: Answer) -> None:
    """Raise SubmissionRefused or NeverSchedulable if the server refuses a submission (HTTP 400)."""
    if answer.status == BAD_REQUEST:
        kind = NeverSchedulable if answer.code == NeverSchedulable.code else SubmissionRefused
        raise refused(kind, "the server refused the submission", answer)
