"""The commands about resource plans: the tree of plans with its jobs, its replacement, and the use of slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dlicmd.cli.render import Output, emit, emit_said, emit_value, scalar, show_rows
from dlicmd.cli.session import Session
from dlicmd.cli.show.apps import active
from dlicmd.cli.show.cluster import node_finder, pods
from dlicmd.cli.show.plan_tree import drawn, recorded_tree
from dlicmd.contract import application, wire
from dlicmd.contract.exits import Exit
from dlicmd.contract.plan import nodes, reserved
from dlicmd.contract.reading import number, words
from dlicmd.sdk.client import Client
from dlicmd.sdk.errors import Denied, ServerError, UsageProblem
from dlicmd.sdk.messages import one_line, warn
from dlicmd.sdk.objects import Application, Holdings, Plan

#: Keys of queries that servers accept for the sums of holdings.
OF_HOLDINGS = (wire.FROM, wire.TO, wire.BY, wire.KIND)
HOURS = "slot-hours"
#: Columns of single holdings.
SINGLE = (wire.EXEC_ID, wire.USER, wire.CONSUMER, wire.SLOT, wire.KIND, wire.SHARE, wire.FROM, wire.TO)


def get_all(session: Session) -> int:
    """Print the tree with the pending and running jobs; as data, print the tree as the server returns it."""
    client, output = session.client, session.output
    tree = client.plans()
    if output.is_data:
        emit_value(tree, output)
        return Exit.DONE
    jobs = _jobs(client)
    finder = node_finder(pods(client) if any(application.addresses(job) for job in jobs) else ())
    if output.is_recorded:
        emit("\n".join(recorded_tree(tree, jobs, finder, colored=output.is_original)))
    else:
        emit("\n".join(drawn(tree, jobs, finder)))
    return Exit.DONE


def get(session: Session) -> int:
    """Print one plan."""
    emit_value(session.client.plan(session.operand), session.output)
    return Exit.DONE


def apply(session: Session) -> int:
    """Replace all plans by those in a YAML file, and print the new tree without jobs. With `--dry-run`, print what
    would happen to the jobs instead."""
    if session.line.flag("--dry-run"):
        return _preview(session)
    tree = _replaced(session.client, _read_plans(session.operand))
    if session.output.is_data:
        emit_value(tree, session.output)
    else:
        emit("\n".join(drawn(tree)))
    return Exit.DONE


def delete(session: Session) -> int:
    """Delete a plan."""
    emit_said(session.client.delete_plan(session.operand), session.output)
    return Exit.DONE


def usage(session: Session) -> int:
    """Print slot-hours of users, consumers, execs or slots."""
    session.need(wire.EXT_HOLDINGS, "does not record the use of its slots")
    _show_usage(session.client.holdings(session.query(OF_HOLDINGS)), session.output)
    return Exit.DONE


def _preview(session: Session) -> int:
    """Print the slots of each plan and user, and of each job, now and after a change of the plans."""
    found, output = session.client.preview_plans(_read_plans(session.operand)), session.output
    if output.is_data:
        emit_value(found, output)
        return Exit.DONE
    shown: dict[tuple[str, str, str], dict[str, Any]] = {}
    for moment in ("now", "then"):
        for one in found[moment]:
            key = words(one.get("kind")), words(one.get("plan")), words(one.get("user"))
            row = shown.setdefault(key, dict(zip(("kind", "plan", "user"), key, strict=True)))
            row |= {f"due {moment}": _slots(one.get("due")), f"slots {moment}": _slots(one.get("used"))}
    show_rows([*shown.values()], output, ("kind", "plan", "user", "due now", "due then", "slots now", "slots then"),
              lambda row, column: scalar(row.get(column)))
    if found["execs"]:
        emit("")
        columns = ("id", "user", "planThen", "slotsNow", "slotsThen")
        show_rows(found["execs"], output, columns, lambda row, column: scalar(row.get(column)))
    return Exit.DONE


def _slots(value: object) -> str:
    found = number(value)
    return "" if found is None else f"{found:g}"


def _read_plans(name: str) -> Any:
    """Return the document in a YAML file. Raises UsageProblem when the file is empty."""
    from dlicmd.sdk.yaml_file import read  # YAML, for this command alone

    found = read(Path(name))
    if found is None:
        raise UsageProblem(f"{name} contains no plans")
    return found.json("a plan")


def _replaced(client: Client, document: Any) -> Plan:
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


def _mind_reservations(client: Client, tree: Plan) -> None:
    """Warn if more slots are reserved than the machine has of its most frequent kind."""
    if wire.EXT_SLOT_VIEW not in client.extensions():
        return
    kinds = Counter(slot.kind for slot in client.slot_view().slots)
    most, asked = max(kinds.values(), default=0), reserved(tree)
    if asked > most:
        warn(f"{asked} slots are reserved, but only {most} exist: some plans cannot get all their reserved slots")


def _jobs(client: Client) -> list[Application]:
    """Return the active jobs. If only these cannot be fetched, warn and return none. Raises Denied."""
    try:
        return active(client)
    except Denied:
        raise
    except ServerError as problem:
        warn(f"cannot list the jobs: {problem}")
        return []


def _show_usage(found: Holdings, output: Output) -> None:
    """Print an answer of `Client.holdings`: sums by the requested key, or single holdings."""
    if output.is_data:
        emit_value(found, output)
        return
    begin, end = (words(found.get(name)) or "?" for name in (wire.FROM, wire.TO))
    if not output.columns:  # otherwise a program reads the rows
        emit(one_line(f"From {begin} To {end}: {_hours(found)} {HOURS}"))
    by = found.by
    columns = SINGLE if by == wire.HOLDING else (by or wire.KEY, HOURS, wire.SHARE)
    show_rows(found.rows, output, columns, lambda row, column: _cell(row, column, by))


def _cell(row: Mapping[str, Any], column: str, by: str) -> str:
    if column == HOURS:
        return _hours(row)
    if column == wire.SHARE and by != wire.HOLDING:
        share = number(row.get(wire.SHARE))
        return scalar(None if share is None else f"{share:.1%}")
    return scalar(row.get(wire.KEY if column == by else column))


def _hours(found: Mapping[str, Any]) -> str:
    seconds = number(found.get(wire.SLOT_SECONDS))
    return scalar(None if seconds is None else f"{seconds / 3600:,.2f}")
