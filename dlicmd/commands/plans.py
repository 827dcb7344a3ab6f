"""Resource plans: read them from a YAML file, and show them as a tree with their jobs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from dlicmd.client import Client
from dlicmd.console import one_line, warn
from dlicmd.contract import application, wire
from dlicmd.contract.plan import nodes, reserved
from dlicmd.contract.reading import objects, words
from dlicmd.errors import Denied, ServerError, UsageProblem
from dlicmd.render import Output, emit, emit_value
from dlicmd.show.apps import active
from dlicmd.show.cluster import node_finder, pods
from dlicmd.show.plan_tree import drawn


def read_plans(name: str) -> Any:
    """Return the document in a YAML file. Raises UsageProblem when the file is empty."""
    from dlicmd.config.yaml_file import read

    found = read(Path(name))
    if found is None:
        raise UsageProblem(f"{name} contains no plans")
    return found.json("a plan")


def apply_plans(client: Client, document: Any) -> dict[str, Any]:
    """Replace all plans, and return the new tree. Warn about removed plans that have jobs, and if more slots are
    reserved than there are."""
    before = {plan.tag for plan in nodes(client.plans())}
    jobs = _jobs(client)
    tree = client.replace_plans(document)
    gone: dict[str, list[str]] = {}
    for job in jobs:
        if application.consumer(job) in before - {plan.tag for plan in nodes(tree)}:
            gone.setdefault(application.consumer(job), []).append(application.identity(job))
    for tag, ids in sorted(gone.items()):
        warn(f"removed the plan {one_line(tag)}; its jobs ({one_line(', '.join(ids))}) now count for the nearest plan "
             "above")
    _mind_reservations(client, tree)
    return tree


def _mind_reservations(client: Client, tree: dict[str, Any]) -> None:
    """Warn if more slots are reserved than the machine has of its most frequent kind."""
    if wire.EXT_SLOT_VIEW not in client.extensions():
        return
    kinds = Counter(words(slot.get(wire.KIND)) for slot in objects(client.slot_view().get(wire.SLOTS)))
    most, asked = max(kinds.values(), default=0), reserved(tree)
    if asked > most:
        warn(f"{asked} slots are reserved, but only {most} exist: some plans cannot get all their reserved slots")


def show_plans(tree: dict[str, Any], output: Output) -> None:
    """Print the tree without jobs."""
    if output.is_data:
        emit_value(tree, output)
    else:
        emit("\n".join(drawn(tree)))


def show_plans_with_jobs(client: Client, output: Output) -> None:
    """Print the tree with the pending and running jobs; as data, print the tree as the server returns it."""
    tree = client.plans()
    if output.is_data:
        emit_value(tree, output)
        return
    jobs = _jobs(client)
    nodes = node_finder(pods(client) if any(application.addresses(job) for job in jobs) else ())
    emit("\n".join(drawn(tree, jobs, nodes)))


def _jobs(client: Client) -> list[dict[str, Any]]:
    """Return the active jobs. If only these cannot be fetched, warn and return none. Raises Denied."""
    try:
        return active(client)
    except Denied:
        raise
    except ServerError as problem:
        warn(f"cannot list the jobs: {problem}")
        return []
