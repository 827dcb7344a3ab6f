"""Resource plans: read from a YAML file, shown as a tree with the jobs that count for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dlicmd import small_file
from dlicmd.apps import active
from dlicmd.client import Client
from dlicmd.cluster import node_finder, pods
from dlicmd.console import warn
from dlicmd.contract import application
from dlicmd.errors import Denied, ServerError, UsageProblem
from dlicmd.plan_tree import drawn
from dlicmd.render import Output, emit, emit_value

_LARGEST = 1 << 20


def read_plans(name: str) -> Any:
    """The document in a YAML file. Raises UsageProblem when there is none."""
    import yaml

    text = small_file.read("--rp-apply", name, _LARGEST)
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as problem:
        mark = getattr(problem, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None else ""
        raise UsageProblem(f"--rp-apply {Path(name).name}: this is not YAML{where}") from None


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
