"""The tree of resource plans as text: every plan with its limits, below it its users, below them their jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dlicmd.cli.console import paint
from dlicmd.cli.show.apps import amount, packed, recorded_cell
from dlicmd.cli.show.recorded import sub_table
from dlicmd.cli.show.table import MISSING
from dlicmd.contract import application, states, wire
from dlicmd.contract.plan import Node, nodes
from dlicmd.sdk.messages import one_line

_STEP = "  "
#: The tree of the original client.
_LEVEL, _CHILD = "    ", "|-- "
_GREEN, _RED = "32", "31"
_COLOURS = {"RUNNING": "green", "PENDING": "yellow", "UNKNOWN": "red"}
Jobs = dict[str, list[Mapping[str, Any]]]


def drawn(
    tree: Mapping[str, Any], jobs: Sequence[Mapping[str, Any]] = (),
    where: Callable[[Mapping[str, Any]], str] = lambda _: "",
) -> Iterator[str]:
    """Yield the lines of the tree. A job is below the plan, or the user of a plan, that its tag names. A job whose tag
    names neither is below `Unknown`. `where` names the nodes that a job runs on."""
    plans = list(nodes(tree))
    users = _users(plans, jobs)
    by_tag: Jobs = {}
    for job in jobs:
        by_tag.setdefault(application.tag(job), []).append(job)
    for plan in plans:
        yield _plan(plan)
        yield from _lines(by_tag.pop(plan.tag, []), plan.depth + 1, where)
        for user in users.pop(plan.tag, ()):
            yield _STEP * (plan.depth + 1) + paint(one_line(user), "cyan")
            yield from _lines(by_tag.pop(f"{plan.tag}/{user}", []), plan.depth + 2, where)
    if by_tag:
        yield paint("Unknown", "bold")
    for tag in sorted(by_tag):
        yield _STEP + paint(one_line(tag) or MISSING, "cyan")
        yield from _lines(by_tag[tag], 2, where)


def recorded_tree(
    tree: Mapping[str, Any], jobs: Sequence[Mapping[str, Any]], where: Callable[[Mapping[str, Any]], str], *,
    colored: bool,
) -> Iterator[str]:
    """Yield the lines of the tree as the original client prints it: below `root` every plan, below it its users, and
    below each their jobs as a table without borders. Names of plans are green, those of users red."""
    plans = list(nodes(tree))
    users = _users(plans, jobs)
    by_tag: Jobs = {}
    for job in jobs:
        by_tag.setdefault(application.tag(job), []).append(job)

    def name(text: str, depth: int, color: str) -> str:
        shown = one_line(text)
        return _LEVEL * depth + _CHILD + (f"\x1b[{color}m{shown}\x1b[0m" if colored else shown)

    yield "root"
    for plan in plans:
        yield name(plan.name, plan.depth, _GREEN)
        yield from _job_lines(by_tag.pop(plan.tag, []), plan.depth + 1, where)
        for user in users.pop(plan.tag, ()):
            yield name(user, plan.depth + 1, _RED)
            yield from _job_lines(by_tag.pop(f"{plan.tag}/{user}", []), plan.depth + 2, where)
    if by_tag:
        yield name("Unknown", 0, _GREEN)
        yield from _job_lines([job for found in by_tag.values() for job in found], 1, where)


def _job_lines(
    jobs: Sequence[Mapping[str, Any]], depth: int, where: Callable[[Mapping[str, Any]], str]
) -> Sequence[str]:
    rows = [
        [_STEP * more + application.identity(job), recorded_cell(job, "type"), recorded_cell(job, "state"),
         application.request(job), recorded_cell(job, "age"), where(job) or None]
        for more, job in packed(jobs)
    ]
    return sub_table(rows, _LEVEL * depth) if rows else ()


def _users(plans: Sequence[Node], jobs: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return, by tag of a plan, the users with jobs there and without a plan of their own below it."""
    tags = {plan.tag for plan in plans}
    found: dict[str, list[str]] = {}
    for job in jobs:
        plan, user = application.consumer(job), application.user(job)
        if plan in tags and user and f"{plan}/{user}" not in tags and user not in found.setdefault(plan, []):
            found[plan].append(user)
    return {plan: sorted(users) for plan, users in found.items()}


def _plan(plan: Node) -> str:
    limits = [f"{key}={_short(value)}" for key, value in plan.limits.items()]
    told = "".join(_STEP + paint(one_line(limit), "dim") for limit in limits)
    return _STEP * plan.depth + paint(one_line(plan.name), "bold") + told


def _lines(jobs: Sequence[Mapping[str, Any]], depth: int, where: Callable[[Mapping[str, Any]], str]) -> Iterator[str]:
    for more, job in packed(jobs):
        yield _STEP * (depth + more) + _job(job, where(job))


def _job(job: Mapping[str, Any], nodes_of_it: str) -> str:
    """Return `local-1  ElasticPyTorchTrain  RUNNING  2/4 workers  gpu=2  on node-1`, and why the job is pending or
    parked."""
    state = application.state(job)
    shown = paint(one_line(states.plain(state)), _COLOURS.get(application.bucket(job), "dim"))
    name = one_line(str(job.get(application.FIELDS["name"]) or MISSING))
    text = "  ".join((one_line(application.identity(job)) or MISSING, name, shown, _workers(job)))
    if application.is_running(job):
        held = application.held(job)
        amounts = [f"{key}={amount(key, held)}" for key in ("gpu", "cpu", "mem") if getattr(held, key)]
        text = "  ".join((text, *amounts, *([f"on {one_line(nodes_of_it)}"] if nodes_of_it else ())))
    why = job.get(wire.MESSAGE)
    return text + (f"  ({one_line(str(why))})" if why else "")


def _workers(job: Mapping[str, Any]) -> str:
    """Return `2/4 workers`: the current and the requested workers, if the server gives both."""
    asked, now = application.workers(job), application.executors(job)
    if now is not None and not application.is_running(job):
        now = 0  # the listed ones are past or future workers
    if application.is_pack(job):
        now = None
    return ("" if now is None else f"{now}/") + f"{asked} worker" + ("s" if asked != 1 or now is not None else "")


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
