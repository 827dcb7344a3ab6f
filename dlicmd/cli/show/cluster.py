"""Output about the cluster beside the scheduler: its parallel jobs, and the nodes that pods run on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dlicmd.cli.render import Output, scalar, show_rows
from dlicmd.cli.show import recorded
from dlicmd.cli.show.recorded import RecordedTable
from dlicmd.cli.show.times import short, since
from dlicmd.contract import application, paralleljob
from dlicmd.sdk.client import Client
from dlicmd.sdk.errors import Denied, ServerError
from dlicmd.sdk.messages import debug

COLUMNS = ("id", "namespace", "consumer", "submit_user", "type", "state", "res_req", "nodes", "create_time", "age")


def show_jobs(client: Client, output: Output) -> None:
    """Print the parallel jobs, each with its nodes."""
    jobs = paralleljob.listed(client.kubernetes_objects(paralleljob.KIND))
    found = [] if output.is_data or not jobs else pods(client)
    show_rows(jobs, output, COLUMNS, lambda job, column: _cell(job, column, found),
              RecordedTable(COLUMNS, lambda job, column: _recorded_cell(job, column, found)))


def pods(client: Client) -> list[dict[str, Any]]:
    """Return all pods; none if the server does not give them, because only the names of nodes depend on them."""
    try:
        return paralleljob.listed(client.kubernetes_objects(paralleljob.POD))
    except Denied:
        raise
    except ServerError as problem:
        debug(f"no pods: {problem}")
        return []


def node_finder(found: Iterable[Mapping[str, Any]]) -> Callable[[Mapping[str, Any]], str]:
    """Return a function that names the nodes of an application, by the addresses of these pods; "" for none."""
    by_address = {ip: paralleljob.pod_node(pod) for pod in found for ip in paralleljob.pod_addresses(pod)}
    return lambda app: _joined(by_address.get(ip, "") for ip in application.addresses(app))


def _cell(job: Mapping[str, Any], column: str, found: Sequence[Mapping[str, Any]]) -> str:
    known = paralleljob.row(job)
    special = {
        "nodes": _nodes(job, found),
        "create_time": short(known["created"]) or None,
        "age": since(known["created"]),
    }
    return scalar({**job, **known, **special}.get(column))


def _recorded_cell(job: Mapping[str, Any], column: str, found: Sequence[Mapping[str, Any]]) -> Any:
    """Return a column of the original client's table."""
    known = paralleljob.row(job)
    special = {
        "res_req": paralleljob.request(job),
        "nodes": _nodes(job, found),
        "create_time": recorded.moment(known["created"]),
        "age": recorded.age(known["created"]),
    }
    return {**job, **known, **special}.get(column)


def _nodes(job: Mapping[str, Any], found: Sequence[Mapping[str, Any]]) -> str | None:
    uid = paralleljob.owner(job)
    return _joined(paralleljob.pod_node(pod) for pod in found if uid in paralleljob.pod_owners(pod)) or None


def _joined(names: Iterable[str]) -> str:
    return ",".join(dict.fromkeys(filter(None, names)))
