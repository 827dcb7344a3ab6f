"""Resource plans: read from a YAML file, shown as a tree with the jobs that count for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dlicmd.apps import active
from dlicmd.client import Client
from dlicmd.cluster import node_finder, pods
from dlicmd.console import warn
from dlicmd.contract import application
from dlicmd.errors import Denied, ServerError, UsageProblem
from dlicmd.plan_tree import drawn
from dlicmd.render import Output, emit, emit_value


def read_plans(name: str) -> Any:
    """The document in a YAML file. Raises UsageProblem when there is none."""
    from dlicmd.yaml_file import read

    found = read(Path(name))
    if found is None:
        raise UsageProblem(f"{name}: there are no plans in it")
    return found.json("a plan")


def show_plans(tree: dict[str, Any], output: Output) -> None:
    """Print the tree without jobs."""
    if output.is_data:
        emit_value(tree, output)
    else:
        emit("\n".join(drawn(tree)))


def show_plans_with_jobs(client: Client, output: Output) -> None:
    """Print the tree with the jobs that wait or run; as data, the tree as the server gives it."""
    tree = client.plans()
    if output.is_data:
        emit_value(tree, output)
        return
    jobs = _jobs(client)
    nodes = node_finder(pods(client) if any(application.addresses(job) for job in jobs) else ())
    emit("\n".join(drawn(tree, jobs, nodes)))


def _jobs(client: Client) -> list[dict[str, Any]]:
    """The jobs; without them, and with a word about it, where only they cannot be had."""
    try:
        return active(client)
    except Denied:
        raise
    except ServerError as problem:
        warn(f"the jobs are not shown: {problem}")
        return []
