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
    BAD_REQUEST,
    JSON,
    NOT_FOUND,
    REFUSED,
    STOP,
    TEXT,
    UNKNOWN,
    Caller,
    a_list,
    an_object,
    checked,
    checked_id,
    checked_token,
    explanation,
)
from dlicmd.sdk.errors import ConnectionLost, Denied, NoSuchApplication, NoSuchObject, ServerError, SubmissionRefused
from dlicmd.sdk.metrics import records
from dlicmd.sdk.objects import (
    Algorithm,
    Application,
    Code,
    Exec,
    Framework,
    Holdings,
    Line,
    News,
    Plan,
    Preview,
    Search,
    SlotView,
    StopOutcome,
    Why,
)
from dlicmd.sdk.retry import PASSING
from dlicmd.sdk.transport import READ_TIMEOUT, Answer, Multipart, Request

if TYPE_CHECKING:
    from dlicmd.sdk.submission import SubmitOptions

#: Seconds that a server may take for a submission: the server unpacks the upload before it answers.
SUBMIT_TIMEOUT = 900.0
#: Seconds between two chunks of a result: the server may pack the result before the first chunk.
RESULT_TIMEOUT = 300.0
#: Seconds that a preview of data sources may take.
PREVIEW_TIMEOUT = 660.0
#: Lines of a scheduler log that a call requests; without a number, servers return only a few lines.
ALL_LINES = 1_000_000
#: The most applications that a call requests.
MOST_APPLICATIONS = 10_000
LOG_TYPES = ("outerrlog", "outlog", "errlog")


class Client(Caller):
    """Calls to one server, or to the local backend when `host` is None.

    If the connection breaks or the server is overloaded, a call is repeated up to `retries` times (None:
    DLICMD_RETRIES). A call is not repeated if the server could then execute it twice. Each repetition is reported on
    standard error. `timeout`: seconds that a call waits for a sign of the server (None: DLICMD_TIMEOUT, else the
    call's own limit). Every method raises a `DlicmdError`: `Unreachable`, `Denied`, `NoSuchExec` or another
    `ServerError`.
    """

    # Authentication, configuration

    def use_token(self, token: str) -> None:
        """Send `token` with all later calls."""
        self._token = token

    def logon(self, username: str, password: str) -> dict[str, Any]:
        """Log on and return the server's answer. Later calls of this client use the token in it. Raises Denied."""
        basic = base64.b64encode(f"{username}:{password}".encode()).decode()
        answer = self._transport.send(
            Request("GET", wire.LOGON, {"Authorization": f"Basic {basic}", "Accept": JSON},
                    timeout=self._timeout or READ_TIMEOUT, final=True))
        if answer.status in REFUSED:
            raise Denied(f"the server refused the logon: {explanation(answer)}", answer.status, answer.code)
        found = an_object(checked(answer, "the logon"))
        token = found.get(wire.ACCESS_TOKEN)
        if not isinstance(token, str) or not token:
            raise ServerError("the server's answer to the logon contains no accessToken", answer.status, answer.code)
        self._token = checked_token(token, "the server's answer")
        return found

    def logoff(self) -> str:
        """Revoke the token of this client and return the server's text."""
        return self._call("POST", wire.LOGOFF).text()

    def conf(self) -> dict[str, Any]:
        """Return the server's configuration: names to text."""
        return an_object(self._call("GET", wire.CONF))

    def extensions(self) -> frozenset[str]:
        """Return the names of the server's extensions of the recorded contract, see
        `dlicmd.contract.wire.EXTENSIONS`."""
        named = str(self.conf().get(wire.EXTENSIONS, ""))
        self._extensions = frozenset(name.strip() for name in named.split(",") if name.strip())
        return self._extensions

    def status(self) -> str:
        """Return the server's status in the server's words."""
        return self._call("GET", wire.STATUS).text()

    def frameworks(self) -> list[Framework]:
        """Return the frameworks that `start_exec` accepts."""
        return [Framework(one) for one in a_list(self._call("GET", wire.FRAMEWORKS))]

    # Execs

    def execs(self, query: str | None = None) -> list[Exec]:
        """Return your execs. A `query`, such as `limit=10&state=FINISHED&sort_by=id:desc`, goes to the server
        unchanged."""
        return [Exec(one) for one in a_list(self._listed(f"{wire.EXECS}/", query))]

    def start_exec(self, args: str, body: Multipart | str | None = None) -> Exec:
        """Submit an exec and return it. `args` is the command line. `body` is the files, the text of the `data` part
        alone, or None.

        A submission that may have arrived is sent again only if the server executes submissions with the same key once.
        """
        offered = self.extensions() if self._extensions is None else self._extensions
        request = self.submission(args, body)._replace(keyed=wire.EXT_IDEMPOTENCY in offered)
        answer = self._transport.send(request)
        if answer.repeated and answer.status in PASSING:
            raise ConnectionLost(f"an answer was lost, then the server was unavailable (HTTP {answer.status})")
        if answer.status == BAD_REQUEST:
            text = f"the server refused the submission: {explanation(answer)}"
            raise SubmissionRefused(text, answer.status, answer.code)
        return Exec(an_object(checked(answer, "the submission")))

    def submission(self, args: str, body: Multipart | str | None = None) -> Request:
        """Return the request that `start_exec` sends, with a new idempotency key."""
        import uuid  # takes 20 ms, for submissions alone

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

    def exec(self, exec_id: str) -> Exec:
        """Return one exec."""
        return Exec(an_object(self._exec_call("GET", exec_id)))

    def stop_exec(self, exec_id: str) -> int:
        """Ask the server to stop an exec, and return the HTTP code of the answer."""
        return self._exec_call("POST", exec_id, STOP).status

    def why(self, exec_id: str) -> Why:
        """Return the resources that a pending exec lacks, the execs that hold them, and advice. For servers without
        the extension `why`, return the exec's id, state and message."""
        if wire.EXT_WHY in self.extensions():
            return Why(an_object(self._exec_call("GET", exec_id, "why")))
        found = self.exec(exec_id)
        return Why({name: found[name] for name in (wire.ID, wire.STATE, wire.MESSAGE) if name in found})

    def verify_exec(self, exec_id: str, steps: int = 20) -> Exec:
        """Submit an elastic exec again to verify its first steps, and return the new exec (extension `verify`). The
        new exec ends FINISHED if two numbers of workers gave the same result, else ERROR."""
        return Exec(an_object(self._exec_call("POST", exec_id, "verify", f"steps={steps}", timeout=SUBMIT_TIMEOUT)))

    def delete_exec(self, exec_id: str) -> int:
        """Delete an exec and its files, and return the HTTP code of the answer."""
        return self._exec_call("DELETE", exec_id).status

    def deploy_exec(self, exec_id: str, asked: dict[str, Any]) -> Answer:
        """Deploy the trained model of an exec. `asked` has the keys of `wire.DEPLOYMENT_TEXTS` and the mappings
        `attributes` and `environments`."""
        return self._exec_call("POST", exec_id, wire.DEPLOY, headers={"Content-Type": JSON},
                               body=json.dumps(asked).encode(), timeout=SUBMIT_TIMEOUT)

    def delete_execs(self) -> int:
        """Delete all your execs, and return the HTTP code of the answer."""
        return self._call("DELETE", wire.EXECS).status

    def train_log(self, exec_id: str, log_type: str = LOG_TYPES[0]) -> Answer:
        """Return the program's output as text, to be read in chunks. `log_type` is one of LOG_TYPES."""
        return self._exec_call("GET", exec_id, "log", f"logType={quote(log_type, safe='')}", accept=TEXT, streamed=True)

    def result(self, exec_id: str, start: int = 0, etag: str = "") -> Answer:
        """Return the trained model as a zip, to be read in chunks. With status 206, the answer has the bytes from
        `start` on.

        With `start` and `etag`, the rest is requested on condition that the server still has the content of that ETag.
        """
        headers = {"Accept-Encoding": "identity"} | (
            {"Range": f"bytes={start}-", "If-Range": etag} if start and etag else {})
        return self._exec_call("GET", exec_id, "result", accept="application/octet-stream", headers=headers,
                               timeout=RESULT_TIMEOUT, streamed=True)

    def follow(self, exec_id: str, cursor: str = "", wait: int = 0) -> News:
        """Return the exec, its new output and the next cursor (extension `follow`). The server waits up to `wait`
        seconds for news."""
        query = urlencode({wire.CURSOR: cursor, "wait": wait} if cursor else {"wait": wait})
        answer = an_object(self._exec_call("GET", exec_id, "follow", query, timeout=30.0, held=wait))
        found, lines = answer.get(wire.EXEC), answer.get(wire.LINES)
        if not isinstance(found, dict) or not isinstance(lines, list):
            raise ServerError("the server sent an invalid answer to the follow call", 200)
        return News(Exec(found), [_line(line) for line in objects(lines)], str(answer.get(wire.CURSOR, "")))

    def metrics(self, exec_id: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the records that the program wrote as metrics, as they arrive (extension `metrics`). Each record comes
        with the number of its file, from 1; each process writes its own file."""
        return records(self._exec_call("GET", exec_id, "metrics", accept=TEXT, streamed=True).chunks())

    def code(self, exec_id: str) -> Code:
        """Return the submitted files (extension `code`)."""
        return Code(an_object(self._exec_call("GET", exec_id, "code")))

    # Whole jobs. Their modules pack, hash and unpack: a start of dlicmd for another command must not import them.

    def submit(self, framework: str, options: SubmitOptions, program: Sequence[str] = ()) -> Exec:
        """Submit the exec that `--exec-start` would submit, and return it.

        `options` are the options of a job file, such as
        `{"model-dir": "model", "model-main": "train.py", "numWorker": 2}`: True for a flag, a list for an option that
        repeats. `program` is the list of words for the program. Raises UsageProblem.
        """
        from dlicmd.sdk.submission import Submission
        from dlicmd.sdk.submit import submit

        return submit(self, Submission.of(framework, options, program))

    def watch(self, exec_id: str, timeout: int | None = None) -> Iterator[News]:
        """Yield the exec and its new output, again and again until it has ended. Raises WaitTimeout after `timeout`
        seconds."""
        from dlicmd.sdk.follow import Clock, watch

        return watch(self, exec_id, Clock(exec_id, timeout))

    def wait(self, exec_id: str, timeout: int | None = None) -> Exec:
        """Wait until an exec has ended, and return it. Raises WaitTimeout after `timeout` seconds."""
        from dlicmd.sdk.follow import Clock, wait

        return wait(self, exec_id, Clock(exec_id, timeout))

    def fetch_result(self, exec_id: str, folder: str | Path = ".", force: bool = False) -> Path:
        """Store the trained model as a zip in `folder`, and return its path; `force` overwrites another file.

        Raises ResultError.
        """
        from dlicmd.sdk.results import check_folder, fetch

        return fetch(self, exec_id, check_folder(str(folder)), force)

    # Scheduler

    def engine_applications(
        self, states: Sequence[str] = (), start: int = 0, length: int = MOST_APPLICATIONS,
    ) -> list[Application]:
        """Return the scheduler's applications in one of `states` (in any, if empty), newest first: `length` of them,
        from number `start` on."""
        query = {"start": start, "length": length, "sort": wire.NEWEST_FIRST} | (
            {wire.STATE: ",".join(states)} if states else {})
        found = a_list(self._call("GET", f"{wire.ENGINE_APPLICATIONS}?{urlencode(query, safe=',')}"))
        return [Application(one) for one in found]

    def application(self, app_id: str) -> Application:
        """Return one application as the scheduler's engine describes it. Raises NoSuchApplication."""
        answer = self._send("GET", wire.application_path(checked_id(app_id)))
        if answer.status in UNKNOWN:
            raise NoSuchApplication(app_id, answer.status)
        found = checked(answer, f"to show {app_id}").json()
        one = next(iter(objects(found)), None) if isinstance(found, list) else found
        if not isinstance(one, dict) or not one:
            raise NoSuchApplication(app_id)
        return Application(one)

    def stop_application(self, app_id: str) -> Answer:
        """Ask the server to stop an application, and return its success answer. Raises NoSuchApplication."""
        answer = self._send("PUT", wire.application_stop_path(checked_id(app_id)), {"Content-Length": "0"})
        if answer.status in UNKNOWN:
            answer.hold()
            try:
                self.application(app_id)
            except NoSuchApplication:
                raise NoSuchApplication(app_id, answer.status) from None
        return checked(answer, f"to stop {app_id}")

    def stop_applications(self, app_ids: Sequence[str]) -> list[StopOutcome]:
        """Ask the server to stop applications, up to `wire.MOST_IDS` in one call (extension `stop-many`). Return the
        outcome for each, in the same order."""
        found: list[StopOutcome] = []
        for at in range(0, len(app_ids), wire.MOST_IDS):
            body = json.dumps({wire.IDS: app_ids[at : at + wire.MOST_IDS]}).encode()
            request = self._request("POST", wire.STOP_MANY, {"Content-Type": JSON}, body, READ_TIMEOUT)
            answer = checked(self._transport.send(request._replace(harmless=True)), "to stop applications")
            found += [StopOutcome(one) for one in a_list(answer)]
        return found

    def applications(self, app_id: str) -> list[dict[str, Any]]:
        """Return the scheduler's detail of an application: a list of 0 or 1 items."""
        return a_list(self._call("GET", f"{wire.APPLICATIONS}?applicationid={quote(app_id, safe='')}"))

    def task_log(self, app_id: str, task: str, log: str) -> Answer:
        """Return a scheduler log, see `wire.task_log_path`, as text to be read in chunks."""
        target = f"{wire.task_log_path(app_id, task, log)}?lastlines={ALL_LINES}"
        return self._call("GET", target, {"Accept": TEXT}, streamed=True)

    def kubernetes_object(self, kind: str, name: str) -> dict[str, Any]:
        """Return one object of the cluster, such as the `paralleljob` of an application. Raises NoSuchObject."""
        answer = self._send("GET", f"{wire.KUBERNETES_OBJECTS}?{urlencode({'type': kind, 'name': name})}")
        return an_object(_there(answer, f"the {kind} {name}"))

    def kubernetes_objects(self, kind: str) -> dict[str, Any]:
        """Return all objects of a type, under `items`."""
        return an_object(self._call("GET", f"{wire.KUBERNETES_OBJECTS}?{urlencode({'type': kind})}"))

    def slot_view(self) -> SlotView:
        """Return the slots, their holders, and the running and pending execs (extension `slot-view`)."""
        return SlotView(an_object(self._call("GET", wire.SLOTS_VIEW)))

    def holdings(self, query: str | None = None) -> Holdings:
        """Return how long users, consumers or execs held slots (extension `holdings`). `query` is like
        `from=2026-01-01&to=2026-02-01&by=user`."""
        return Holdings(an_object(self._listed(wire.HOLDINGS, query)))

    def preview(self, sources: Sequence[Mapping[str, Any]]) -> list[Preview]:
        """Return the contents of data sources, each with `ok`; if that is false, `message` says why (extension
        `data-preview`)."""
        body = json.dumps({wire.DATA_SOURCE: list(sources)}).encode()
        answer = self._send("POST", wire.DATA_PREVIEW, {"Content-Type": JSON}, body, PREVIEW_TIMEOUT)
        if answer.status == BAD_REQUEST:
            raise SubmissionRefused(f"the server refused: {explanation(answer)}", answer.status, answer.code)
        return [Preview(one) for one in a_list(checked(answer, "to preview the data"))]

    def plans(self) -> Plan:
        """Return the tree of resource plans: the outermost plan, with the others as its `children`."""
        return Plan(an_object(self._call("GET", wire.PLAN_TREE)))

    def plan(self, name: str) -> Plan:
        """Return one resource plan. Raises NoSuchObject."""
        return Plan(an_object(_there(self._send("GET", wire.plan_path(name)), f"the plan {name}")))

    def replace_plans(self, document: Any) -> Plan:
        """Replace all resource plans by those of `{"plans": [...]}`, and return the new tree. Only our own servers
        support this."""
        answer = self._send("PUT", wire.PLAN_TREE, {"Content-Type": JSON}, json.dumps(document).encode())
        if answer.status == BAD_REQUEST:
            raise SubmissionRefused(f"the server refused the plans: {explanation(answer)}", answer.status, answer.code)
        return Plan(an_object(checked(answer, "the plans")))

    def delete_plan(self, name: str) -> str:
        """Delete a resource plan and the plans below it, and return the server's text. Raises NoSuchObject."""
        answer = self._send("DELETE", wire.plan_path(name))
        if answer.status in UNKNOWN:
            answer.hold()
            if self._send("GET", wire.plan_path(name)).status in UNKNOWN:
                # If there was an earlier attempt, it deleted the plan and its answer was lost.
                return "" if answer.repeated else _there(answer, f"the plan {name}").text()
        return checked(answer, f"to delete the plan {name}").text()

    # Searches for hyper-parameters

    def searches(self, query: str | None = None) -> list[Search]:
        """Return your searches with their experiments. The `query` goes to the server unchanged."""
        return [Search(one) for one in a_list(self._listed(wire.SEARCHES, query))]

    def start_search(self, body: Multipart) -> Answer:
        """Submit a search: the packed model folder, and the definition as the text of the `data` part."""
        answer = self._send("POST", wire.SEARCHES, {"Content-Type": body.content_type}, body, SUBMIT_TIMEOUT)
        if answer.status == BAD_REQUEST:
            raise SubmissionRefused(f"the server refused the search: {explanation(answer)}", answer.status, answer.code)
        return checked(answer, "the search")

    def search(self, name: str) -> Search:
        """Return one search. Raises NoSuchSearch."""
        return Search(an_object(self._search_call("GET", name, "show {}")))

    def stop_search(self, name: str) -> Answer:
        """Ask the server to stop a search, and return its success answer. Raises NoSuchSearch."""
        return self._search_call("PUT", name, "stop {}")

    def restart_search(self, name: str) -> Answer:
        """Restart a stopped search, and return the server's success answer. Raises NoSuchSearch."""
        return self._search_call("PUT", name, "restart {}", wire.RESTART)

    def delete_search(self, name: str) -> Answer:
        """Delete a search, and return the server's success answer. Raises NoSuchSearch."""
        return self._search_call("DELETE", name, "delete {}")

    def delete_searches(self) -> Answer:
        """Delete all your searches."""
        return self._call("DELETE", wire.SEARCHES)

    def algorithms(self) -> list[Algorithm]:
        """Return the search algorithms."""
        return [Algorithm(one) for one in a_list(self._call("GET", wire.ALGORITHMS))]

    def algorithm(self, name: str) -> Algorithm:
        """Return one algorithm. Raises NoSuchObject."""
        return Algorithm(an_object(self._algorithm_call("GET", name)))

    def delete_algorithm(self, name: str) -> str:
        """Delete an installed algorithm, and return the server's text. Raises NoSuchObject."""
        return self._algorithm_call("DELETE", name).text()

    def _algorithm_call(self, method: str, name: str) -> Answer:
        if not name.strip(". ") or not name.isprintable():
            raise NoSuchObject(f"there is no algorithm '{name}'", NOT_FOUND)
        answer = self._send(method, wire.algorithm_path(name))
        if answer.status == NOT_FOUND:
            raise NoSuchObject(f"there is no algorithm '{name}': {explanation(answer)}", NOT_FOUND)
        return checked(answer, f"the algorithm {name}")


def _line(line: Mapping[str, Any]) -> Line:
    return Line(str(line.get(wire.TEXT, "")), str(line.get(wire.TASK, "")), str(line.get(wire.STREAM, "stdout")))


def _there(answer: Answer, what: str) -> Answer:
    """Return the answer about a named object. Raises NoSuchObject when the server does not know it."""
    if answer.status in UNKNOWN:
        raise NoSuchObject(f"{what}: {explanation(answer)}", answer.status, answer.code)
    return checked(answer, f"to show {what}")
