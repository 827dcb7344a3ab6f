"""The REST contract as Python: one method per call. This is the public SDK, and all that the commands use.

    from dlicmd import Client

    with Client() as client:                      # the local backend, started when it does not run
        for run in client.execs("state=RUNNING"):
            print(run["id"], run["state"])
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from dlicmd import auth
from dlicmd.caller import JSON, NOT_FOUND, STOP, TEXT, UNKNOWN, Caller, checked_id
from dlicmd.contract import wire
from dlicmd.contract.reading import objects
from dlicmd.errors import ConnectionLost, Denied, NoSuchApplication, NoSuchObject, ServerError, SubmissionRefused
from dlicmd.rest.answers import BAD_REQUEST, a_list, an_object, checked, explanation
from dlicmd.rest.body import Multipart
from dlicmd.rest.retry import PASSING
from dlicmd.rest.transport import READ_TIMEOUT, Answer, Request

#: Seconds that a server may take over a submission: it unpacks the upload before it answers.
SUBMIT_TIMEOUT = 900.0
#: Seconds between two pieces of a result: the server may pack it before the first.
RESULT_TIMEOUT = 300.0
#: Seconds that a look at data sources may take.
PREVIEW_TIMEOUT = 660.0
#: Lines of a scheduler log that are asked for; without a number servers give a few.
ALL_LINES = 1_000_000
#: Applications that are asked for at most.
MOST_APPLICATIONS = 10_000
LOG_TYPES = ("outerrlog", "outlog", "errlog")


class Client(Caller):
    """Calls to one server, or to the local backend when `host` is None.

    Calls that the server cannot do twice are repeated up to `retries` times when the connection breaks or the server is
    overloaded (None: as DLICMD_RETRIES says); each repetition is told on standard error. With `timeout` no call waits
    longer for a sign of the server, in seconds (None: as DLICMD_TIMEOUT says, else as fits the call).
    Every method raises a `DlicmdError`: `Unreachable`, `Denied`, `NoSuchExec` or another `ServerError`.
    """

    # Authentication, configuration

    def use_token(self, token: str) -> None:
        """Send `token` with the calls from now on."""
        self._token = token

    def logon(self, username: str, password: str) -> dict[str, Any]:
        """The answer to a logon; later calls of this client use its token."""
        import base64

        basic = base64.b64encode(f"{username}:{password}".encode()).decode()
        answer = self._transport.send(
            Request("GET", wire.LOGON, {"Authorization": f"Basic {basic}", "Accept": JSON},
                    timeout=self._timeout or READ_TIMEOUT, final=True))
        if answer.status in auth.REFUSED:
            raise Denied(f"the server refused the logon: {explanation(answer)}", answer.status)
        found = an_object(checked(answer, "the logon"))
        token = found.get(wire.ACCESS_TOKEN)
        if not isinstance(token, str) or not token:
            raise ServerError("the server's answer to the logon holds no accessToken", answer.status)
        self._token = auth.checked_token(token, "the server's answer")
        return found

    def logoff(self) -> str:
        """Revoke the token of this client; the server's text."""
        return self._call("POST", wire.LOGOFF).text()

    def conf(self) -> dict[str, Any]:
        """The server's configuration: names to text."""
        return an_object(self._call("GET", wire.CONF))

    def extensions(self) -> frozenset[str]:
        """What the server offers beyond the recorded contract, see `dlicmd.contract.wire.EXTENSIONS`."""
        named = str(self.conf().get(wire.EXTENSIONS, ""))
        self._extensions = frozenset(name.strip() for name in named.split(",") if name.strip())
        return self._extensions

    def status(self) -> str:
        """The server's status, as it words it."""
        return self._call("GET", wire.STATUS).text()

    def frameworks(self) -> list[dict[str, Any]]:
        """The frameworks that `start_exec` takes."""
        return a_list(self._call("GET", wire.FRAMEWORKS))

    # Execs

    def execs(self, query: str | None = None) -> list[dict[str, Any]]:
        """Your execs; `query` like `limit=10&state=FINISHED&sort_by=id:desc` goes to the server as it is."""
        return a_list(self._listed(f"{wire.EXECS}/", query))

    def start_exec(self, args: str, body: Multipart | str | None = None) -> dict[str, Any]:
        """Submit: `args` is the command line, `body` the files, or the text of the `data` part alone, or nothing.

        What may have arrived is only sent again to a server that is known to take a submission once, by its key.
        """
        offered = self.extensions() if self._extensions is None else self._extensions
        request = self.submission(args, body)._replace(keyed=wire.EXT_IDEMPOTENCY in offered)
        answer = self._transport.send(request)
        if answer.repeated and answer.status in PASSING:
            raise ConnectionLost(f"an answer was lost, then the server was away (HTTP {answer.status})")
        if answer.status == BAD_REQUEST:
            raise SubmissionRefused(f"the server refused the submission: {explanation(answer)}", answer.status)
        return an_object(checked(answer, "the submission"))

    def submission(self, args: str, body: Multipart | str | None = None) -> Request:
        """The request that `start_exec` sends, with a new key."""
        import uuid

        sent: bytes | Multipart | None
        if isinstance(body, str):
            sent = urlencode({wire.PART_DATA: body}).encode()
            headers = {"Content-Type": "application/x-www-form-urlencoded"}
        else:
            sent = body
            headers = {"Content-Type": body.content_type} if body is not None else {"Content-Length": "0"}
        headers[wire.KEY_HEADER] = f'"{uuid.uuid4()}"'
        target = f"{wire.EXECS}/?" + f"{wire.ARGS}={quote(args, safe='')}"
        return self._request("POST", target, headers, sent, SUBMIT_TIMEOUT)

    def exec(self, exec_id: str) -> dict[str, Any]:
        """One exec."""
        return an_object(self._exec_call("GET", exec_id))

    def stop_exec(self, exec_id: str) -> int:
        """Ask that an exec be stopped; the HTTP code of the answer."""
        return self._exec_call("POST", exec_id, STOP).status

    def why(self, exec_id: str) -> dict[str, Any]:
        """What a waiting exec lacks, who has it, and what can be done. From other servers: its state and message."""
        if wire.EXT_WHY in self.extensions():
            return an_object(self._exec_call("GET", exec_id, "why"))
        found = self.exec(exec_id)
        return {name: found[name] for name in (wire.ID, wire.STATE, wire.MESSAGE) if name in found}

    def verify_exec(self, exec_id: str, steps: int = 20) -> dict[str, Any]:
        """Submit an elastic exec again to verify its first steps (extension `verify`): the new exec. It ends FINISHED
        when two numbers of workers gave the same result, else ERROR."""
        return an_object(self._exec_call("POST", exec_id, "verify", f"steps={steps}", timeout=SUBMIT_TIMEOUT))

    def delete_exec(self, exec_id: str) -> int:
        """Delete an exec and its files; the HTTP code of the answer."""
        return self._exec_call("DELETE", exec_id).status

    def deploy_exec(self, exec_id: str, asked: dict[str, Any]) -> Answer:
        """Deploy the trained model of an exec; `asked` has the keys of `wire.DEPLOYMENT_TEXTS` and two mappings."""
        return self._exec_call("POST", exec_id, wire.DEPLOY, headers={"Content-Type": JSON},
                               body=json.dumps(asked).encode(), timeout=SUBMIT_TIMEOUT)

    def delete_execs(self) -> int:
        """Delete all your execs; the HTTP code of the answer."""
        return self._call("DELETE", wire.EXECS).status

    def train_log(self, exec_id: str, log_type: str = LOG_TYPES[0]) -> Answer:
        """What the program wrote, as text to be read in chunks; `log_type` is one of LOG_TYPES."""
        return self._exec_call("GET", exec_id, "log", f"logType={quote(log_type, safe='')}", accept=TEXT, streamed=True)

    def result(self, exec_id: str, start: int = 0, etag: str = "") -> Answer:
        """The trained model as a zip, to be read in chunks; its whole, or with status 206 what follows byte `start`.

        With `start` and `etag` the rest is asked for in case the server still has what it gave that ETag.
        """
        headers = {"Accept-Encoding": "identity"} | (
            {"Range": f"bytes={start}-", "If-Range": etag} if start and etag else {})
        return self._exec_call("GET", exec_id, "result", accept="application/octet-stream", headers=headers,
                               timeout=RESULT_TIMEOUT, streamed=True)

    def follow(self, exec_id: str, cursor: str = "", wait: int = 0) -> dict[str, Any]:
        """The exec, its new output and the next cursor (extension `follow`); waits up to `wait` seconds for news."""
        query = urlencode({wire.CURSOR: cursor, "wait": wait} if cursor else {"wait": wait})
        return an_object(self._exec_call("GET", exec_id, "follow", query, timeout=30.0, held=wait))

    def metrics(self, exec_id: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """What the program recorded as metrics, as it arrives (extension `metrics`): the number, from 1, of the file
        that a record stands in, of which each process has its own, and the record."""
        from dlicmd.metrics import records

        return records(self._exec_call("GET", exec_id, "metrics", accept=TEXT, streamed=True).chunks())

    def code(self, exec_id: str) -> dict[str, Any]:
        """What was submitted (extension `code`): `files`, each with `path`, `bytes` and as far as they are given
        `sha256` and `text`; and `complete`, unless there are more."""
        return an_object(self._exec_call("GET", exec_id, "code"))

    # Whole jobs

    def submit(
        self, framework: str, options: Mapping[str, Any], program: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Submit what `--exec-start` would: the new exec.

        `options` are those of a job file, such as {"model-dir": "model", "model-main": "train.py", "numWorker": 2}:
        True for a flag, a list for an option that repeats. `program` are the words for the program, as a list.
        Raises UsageProblem.
        """
        from dlicmd import jobs

        return jobs.submit(self, framework, options, program)

    def wait(self, exec_id: str, timeout: int | None = None) -> dict[str, Any]:
        """The exec, when it has ended. Raises WaitTimeout after `timeout` seconds."""
        from dlicmd import jobs

        return jobs.wait(self, exec_id, timeout)

    def fetch_result(self, exec_id: str, folder: str | Path = ".", force: bool = False) -> Path:
        """The file in `folder` in which the trained model is stored, a zip; `force` writes over another one.

        Raises ResultError.
        """
        from dlicmd import jobs

        return jobs.fetch_result(self, exec_id, folder, force)

    # Scheduler

    def engine_applications(
        self, states: Sequence[str] = (), start: int = 0, length: int = MOST_APPLICATIONS,
    ) -> list[dict[str, Any]]:
        """What the scheduler has in hand, in one of `states` (in any, without), newest first: from number `start` on
        `length` of them."""
        query = {"start": start, "length": length, "sort": wire.NEWEST_FIRST} | (
            {wire.STATE: ",".join(states)} if states else {})
        return a_list(self._call("GET", f"{wire.ENGINE_APPLICATIONS}?{urlencode(query, safe=',')}"))

    def application(self, app_id: str) -> dict[str, Any]:
        """One application as the scheduler's engine sees it. Raises NoSuchApplication."""
        answer = self._send("GET", wire.application_path(checked_id(app_id)))
        if answer.status in UNKNOWN:
            raise NoSuchApplication(app_id, answer.status)
        found = checked(answer, f"to show {app_id}").json()
        one = next(iter(objects(found)), None) if isinstance(found, list) else found
        if not isinstance(one, dict) or not one:
            raise NoSuchApplication(app_id)
        return one

    def stop_application(self, app_id: str) -> Answer:
        """Ask that an application be stopped; the answer is a success. Raises NoSuchApplication."""
        answer = self._send("PUT", wire.application_stop_path(checked_id(app_id)), {"Content-Length": "0"})
        if answer.status in UNKNOWN:
            answer.hold()
            try:
                self.application(app_id)
            except NoSuchApplication:
                raise NoSuchApplication(app_id, answer.status) from None
        return checked(answer, f"to stop {app_id}")

    def stop_applications(self, app_ids: Sequence[str]) -> list[dict[str, Any]]:
        """Ask in one go that applications be stopped; what became of each, in the same order: `id`, `stopped`,
        `message`, and `state` where there is such an application. Of servers with the extension `stop-many`."""
        found = []
        for at in range(0, len(app_ids), wire.MOST_IDS):
            body = json.dumps({wire.IDS: app_ids[at : at + wire.MOST_IDS]}).encode()
            request = self._request("POST", wire.STOP_MANY, {"Content-Type": JSON}, body, READ_TIMEOUT)
            found += a_list(checked(self._transport.send(request._replace(harmless=True)), "to stop applications"))
        return found

    def applications(self, app_id: str) -> list[dict[str, Any]]:
        """The scheduler's detail of an application: a list of none or one."""
        return a_list(self._call("GET", f"{wire.APPLICATIONS}?applicationid={quote(app_id, safe='')}"))

    def task_log(self, app_id: str, task: str, log: str) -> Answer:
        """A scheduler log, see `wire.task_log_path`, as text to be read in chunks."""
        target = f"{wire.task_log_path(app_id, task, log)}?lastlines={ALL_LINES}"
        return self._call("GET", target, {"Accept": TEXT}, streamed=True)

    def kubernetes_object(self, kind: str, name: str) -> dict[str, Any]:
        """One object of the cluster, such as the `paralleljob` of an application. Raises NoSuchObject."""
        answer = self._send("GET", f"{wire.KUBERNETES_OBJECTS}?{urlencode({'type': kind, 'name': name})}")
        return an_object(_there(answer, f"the {kind} {name}"))

    def kubernetes_objects(self, kind: str) -> dict[str, Any]:
        """All objects of a type, under `items`."""
        return an_object(self._call("GET", f"{wire.KUBERNETES_OBJECTS}?{urlencode({'type': kind})}"))

    def slot_view(self) -> dict[str, Any]:
        """The slots, who holds them, who trains and who waits (extension `slot-view`)."""
        return an_object(self._call("GET", wire.SLOTS_VIEW))

    def holdings(self, query: str | None = None) -> dict[str, Any]:
        """Who had slots for how long (extension `holdings`); `query` like `from=2026-01-01&to=2026-02-01&by=user`."""
        return an_object(self._listed(wire.HOLDINGS, query))

    def preview(self, sources: list[Any]) -> list[dict[str, Any]]:
        """What data sources have, each with `ok`, or why not in `message` (extension `data-preview`)."""
        body = json.dumps({wire.DATA_SOURCE: sources}).encode()
        answer = self._send("POST", wire.DATA_PREVIEW, {"Content-Type": JSON}, body, PREVIEW_TIMEOUT)
        if answer.status == BAD_REQUEST:
            raise SubmissionRefused(f"the server refused: {explanation(answer)}", answer.status)
        return a_list(checked(answer, "to look at the data"))

    def plans(self) -> dict[str, Any]:
        """The tree of resource plans: the outermost one, with others under `childTreeDto`."""
        return an_object(self._call("GET", wire.PLAN_TREE))

    def plan(self, name: str) -> dict[str, Any]:
        """One resource plan. Raises NoSuchObject."""
        return an_object(_there(self._send("GET", wire.plan_path(name)), f"the plan {name}"))

    def replace_plans(self, document: Any) -> dict[str, Any]:
        """Replace all resource plans by those of `{"plans": [...]}`; the new tree. Our own servers only."""
        answer = self._send("PUT", wire.PLAN_TREE, {"Content-Type": JSON}, json.dumps(document).encode())
        if answer.status == BAD_REQUEST:
            raise SubmissionRefused(f"the server refused the plans: {explanation(answer)}", answer.status)
        return an_object(checked(answer, "the plans"))

    def delete_plan(self, name: str) -> str:
        """Delete a resource plan and those below it; the server's text. Raises NoSuchObject."""
        answer = self._send("DELETE", wire.plan_path(name))
        if answer.status in UNKNOWN:
            answer.hold()
            if self._send("GET", wire.plan_path(name)).status in UNKNOWN:
                # An attempt whose answer was lost has done it, if there was one.
                return "" if answer.repeated else _there(answer, f"the plan {name}").text()
        return checked(answer, f"to delete the plan {name}").text()

    # Searches for hyper-parameters

    def searches(self, query: str | None = None) -> list[dict[str, Any]]:
        """Your searches with their experiments; `query` goes to the server as it is."""
        return a_list(self._listed(wire.SEARCHES, query))

    def start_search(self, body: Multipart) -> Answer:
        """Submit a search: the packed model folder, and the definition as the text of the `data` part."""
        answer = self._send("POST", wire.SEARCHES, {"Content-Type": body.content_type}, body, SUBMIT_TIMEOUT)
        if answer.status == BAD_REQUEST:
            raise SubmissionRefused(f"the server refused the search: {explanation(answer)}", answer.status)
        return checked(answer, "the search")

    def search(self, name: str) -> dict[str, Any]:
        """One search. Raises NoSuchSearch."""
        return an_object(self._search_call("GET", name, "show {}"))

    def stop_search(self, name: str) -> Answer:
        """Ask that a search be stopped; the answer is a success. Raises NoSuchSearch."""
        return self._search_call("PUT", name, "stop {}")

    def restart_search(self, name: str) -> Answer:
        """Have a search that was stopped go on; the answer is a success. Raises NoSuchSearch."""
        return self._search_call("PUT", name, "restart {}", wire.RESTART)

    def delete_search(self, name: str) -> Answer:
        """Delete a search; the answer is a success. Raises NoSuchSearch."""
        return self._search_call("DELETE", name, "delete {}")

    def delete_searches(self) -> Answer:
        """Delete all your searches."""
        return self._call("DELETE", wire.SEARCHES)

    def algorithms(self) -> list[dict[str, Any]]:
        """The algorithms that can search."""
        return a_list(self._call("GET", wire.ALGORITHMS))

    def algorithm(self, name: str) -> dict[str, Any]:
        """One algorithm. Raises NoSuchObject."""
        return an_object(self._algorithm_call("GET", name))

    def delete_algorithm(self, name: str) -> str:
        """Delete an algorithm that was installed; the server's text. Raises NoSuchObject."""
        return self._algorithm_call("DELETE", name).text()

    def _algorithm_call(self, method: str, name: str) -> Answer:
        if not name.strip(". ") or not name.isprintable():
            raise NoSuchObject(f"there is no algorithm '{name}'", NOT_FOUND)
        answer = self._send(method, wire.algorithm_path(name))
        if answer.status == NOT_FOUND:
            raise NoSuchObject(f"there is no algorithm '{name}': {explanation(answer)}", NOT_FOUND)
        return checked(answer, f"the algorithm {name}")


def _there(answer: Answer, what: str) -> Answer:
    """The answer about something that has a name. Raises NoSuchObject where the server does not know it."""
    if answer.status in UNKNOWN:
        raise NoSuchObject(f"{what}: {explanation(answer)}", answer.status)
    return checked(answer, f"to show {what}")
