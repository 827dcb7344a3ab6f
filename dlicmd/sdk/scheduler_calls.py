"""The calls about the scheduler: applications, their logs, objects of the cluster, slots and resource plans."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlencode

from dlicmd.contract import wire
from dlicmd.contract.reading import objects
from dlicmd.sdk.calls import (
    BAD_REQUEST,
    JSON,
    TEXT,
    UNKNOWN,
    Calls,
    a_list,
    an_object,
    checked,
    checked_id,
    content,
    known,
    refused,
)
from dlicmd.sdk.errors import NoSuchApplication, SubmissionRefused
from dlicmd.sdk.objects import Application, Holdings, Plan, SlotView, StopOutcome
from dlicmd.sdk.transport import READ_TIMEOUT, Answer

#: Lines of a scheduler log that a call requests; without a number, servers return only a few lines.
ALL_LINES = 1_000_000
#: The most applications that a call requests.
MOST_APPLICATIONS = 10_000


class SchedulerCalls(Calls):
    """Calls about the scheduler."""

    def engine_applications(
        self, states: Sequence[str] = (), start: int = 0, length: int = MOST_APPLICATIONS,
    ) -> list[Application]:
        """Return the applications of the scheduler, newest first.

        Args:
            states: States of the wanted applications, such as `["RUNNING"]`. An empty sequence selects all states.
            start: Number of applications to leave out at the beginning.
            length: Maximum number of applications.

        Raises:
            ServerError: A state is unknown.
        """
        query = {"start": start, "length": length, "sort": wire.NEWEST_FIRST} | (
            {wire.STATE: ",".join(states)} if states else {})
        found = a_list(self._call("GET", f"{wire.ENGINE_APPLICATIONS}?{urlencode(query, safe=',')}"))
        return [Application(one) for one in found]

    def application(self, app_id: str) -> Application:
        """Return one application, as the engine of the scheduler describes it.

        Args:
            app_id: Id of the application, such as `Exec.app_id`.

        Raises:
            NoSuchApplication: No application has this id.
        """
        answer = self._send("GET", wire.application_path(checked_id(app_id)))
        if answer.status in UNKNOWN:
            raise NoSuchApplication(app_id, answer.status, content(answer))
        found = checked(answer, f"to show {app_id}").json()
        one = next(iter(objects(found)), None) if isinstance(found, list) else found
        if not isinstance(one, dict) or not one:
            raise NoSuchApplication(app_id)
        return Application(one)

    def stop_application(self, app_id: str) -> Answer:
        """Ask the server to stop an application.

        Args:
            app_id: Id of the application.

        Returns:
            The success answer.

        Raises:
            NoSuchApplication: No application has this id.
            ServerError: The server refuses to stop the application, for example because the application has ended.
        """
        answer = self._send("PUT", wire.application_stop_path(checked_id(app_id)), {"Content-Length": "0"})
        if answer.status in UNKNOWN:
            try:
                self.application(app_id)
            except NoSuchApplication:
                raise NoSuchApplication(app_id, answer.status, content(answer)) from None
        return checked(answer, f"to stop {app_id}")

    def stop_applications(self, app_ids: Sequence[str]) -> list[StopOutcome]:
        """Ask the server to stop several applications (extension `stop-many`).

        The client sends up to 10,000 ids in one request.

        Args:
            app_ids: Ids of applications. An empty sequence sends nothing.

        Returns:
            The outcome for each application, in the order of `app_ids`. An unknown id is an outcome, not an error.
        """
        found: list[StopOutcome] = []
        for at in range(0, len(app_ids), wire.MOST_IDS):
            body = json.dumps({wire.IDS: app_ids[at : at + wire.MOST_IDS]}).encode()
            request = self._request("POST", wire.STOP_MANY, {"Content-Type": JSON}, body, READ_TIMEOUT)
            answer = checked(self._transport.send(request._replace(harmless=True)), "to stop applications")
            found += [StopOutcome(one) for one in a_list(answer)]
        return found

    def applications(self, app_id: str) -> list[dict[str, Any]]:
        """Return the scheduler's details of an application.

        Args:
            app_id: Id of the application.

        Returns:
            A list with one JSON object, or an empty list if no application has this id.
        """
        return a_list(self._call("GET", f"{wire.APPLICATIONS}?applicationid={quote(app_id, safe='')}"))

    def task_log(self, app_id: str, task: str, log: str) -> Answer:
        """Return a log of the scheduler for one task.

        The answer arrives in chunks. Other calls of this client are possible in the meantime.

        Args:
            app_id: Id of the application.
            task: `driver`, or `executor/N` with N from 1.
            log: `stdout`, `stderr` or `launcherlog`.

        Returns:
            The answer with the last 1,000,000 lines of the log as text.

        Raises:
            ServerError: The application, the task or the log does not exist.
        """
        target = f"{wire.task_log_path(app_id, task, log)}?lastlines={ALL_LINES}"
        return self._call("GET", target, {"Accept": TEXT}, streamed=True)

    def kubernetes_object(self, kind: str, name: str) -> dict[str, Any]:
        """Return one object of the cluster.

        Args:
            kind: Type of the object, such as `paralleljob` or `pod`.
            name: Name of the object. A `paralleljob` has the id of its application.

        Returns:
            The object as JSON, with its name under `metadata`.

        Raises:
            NoSuchObject: No object has this type and name (HTTP 400 or 404).
        """
        answer = self._send("GET", f"{wire.KUBERNETES_OBJECTS}?{urlencode({'type': kind, 'name': name})}")
        return an_object(known(answer, f"the {kind} {name}"))

    def kubernetes_objects(self, kind: str) -> dict[str, Any]:
        """Return all objects of the cluster of one type.

        Args:
            kind: Type of the objects, such as `paralleljob` or `pod`.

        Returns:
            A JSON object with the list of objects under `items`.
        """
        return an_object(self._call("GET", f"{wire.KUBERNETES_OBJECTS}?{urlencode({'type': kind})}"))

    def slot_view(self) -> SlotView:
        """Return all slots, and the running and pending execs (extension `slot-view`)."""
        return SlotView(an_object(self._call("GET", wire.SLOTS_VIEW)))

    def holdings(self, query: str | None = None) -> Holdings:
        """Return how long users, consumers or execs held slots (extension `holdings`).

        Args:
            query: Query of the URL: `from` and `to` (ISO 8601 or epoch seconds), `by` (`consumer`, `user`, `exec`,
                `slot` or `holding`) and `kind` (`gpu` or `cpu`). None stands for the last 24 hours by consumer.

        Raises:
            QueryRefused: The server refuses the query (HTTP 400).

        Examples:
            >>> for row in client.holdings("from=2026-01-01&to=2026-02-01&by=user").rows:
            ...     print(row.key, row.slot_seconds)
        """
        return Holdings(an_object(self._listed(wire.HOLDINGS, query)))

    def plans(self) -> Plan:
        """Return the tree of resource plans.

        Returns:
            The outermost plan, with the other plans below it in `children`.
        """
        return Plan(an_object(self._call("GET", wire.PLAN_TREE)))

    def plan(self, name: str) -> Plan:
        """Return one resource plan with the plans below it.

        Args:
            name: Path of the plan, such as `/local/research/vision`; or a name that only one plan has.

        Returns:
            The plan. The contract does not define its keys: `Plan` reads those of the tree and those of the local
                backend.

        Raises:
            NoSuchObject: No resource plan has this name (HTTP 400 or 404).
        """
        return Plan(an_object(known(self._send("GET", wire.plan_path(name)), f"the plan {name}")))

    def replace_plans(self, document: Any) -> Plan:
        """Replace all resource plans.

        Only the local backend supports this call.

        Args:
            document: The new plans as a JSON object, `{"plans": [...]}`.

        Returns:
            The outermost plan of the new tree.

        Raises:
            SubmissionRefused: The server refuses the plans (HTTP 400).
        """
        answer = self._send("PUT", wire.PLAN_TREE, {"Content-Type": JSON}, json.dumps(document).encode())
        if answer.status == BAD_REQUEST:
            raise refused(SubmissionRefused, "the server refused the plans", answer)
        return Plan(an_object(checked(answer, "the plans")))

    def plan_shares(self) -> list[dict[str, Any]]:
        """Return the slots that are due to each resource plan and user now, and the slots in use.

        Only the local backend supports this call.

        Returns:
            One object for each plan, user and kind of slot, with the keys `kind`, `plan`, `user` (absent for the plan
                as a whole), `due`, `used` and `wanted`.
        """
        return a_list(self._call("GET", wire.PLAN_SHARES))

    def preview_plans(self, document: Any) -> dict[str, Any]:
        """Return what would happen to the pending and running jobs if these plans replaced all resource plans.

        Only the local backend supports this call.

        Args:
            document: The plans as a JSON object, `{"plans": [...]}`.

        Returns:
            An object with the keys `tree`, `now` and `then` (as `plan_shares` returns them), and `execs`.

        Raises:
            SubmissionRefused: The server refuses the plans (HTTP 400).
        """
        answer = self._send("POST", wire.PLAN_PREVIEW, {"Content-Type": JSON}, json.dumps(document).encode())
        if answer.status == BAD_REQUEST:
            raise refused(SubmissionRefused, "the server refused the plans", answer)
        return an_object(checked(answer, "the plans"))

    def delete_plan(self, name: str) -> str:
        """Delete a resource plan and the plans below it.

        Args:
            name: Path or name of the plan, as for `plan`.

        Returns:
            The text of the server's answer. The text is empty if an earlier attempt of this call deleted the plan.

        Raises:
            NoSuchObject: No resource plan has this name (HTTP 400 or 404).
        """
        answer = self._send("DELETE", wire.plan_path(name))
        if answer.status in UNKNOWN and self._send("GET", wire.plan_path(name)).status in UNKNOWN:
            # If there was an earlier attempt, it deleted the plan and its answer was lost.
            return "" if answer.repeated else known(answer, f"the plan {name}").text()
        return checked(answer, f"to delete the plan {name}").text()
