"""The slots at a glance: their holders, their utilization, the running and the pending jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from dlicmd.cli.show.times import short
from dlicmd.cli.show.views import fitted, how_it_goes, is_parked, time_left, where_it_is
from dlicmd.contract import states, wire
from dlicmd.contract.reading import number, objects, words
from dlicmd.sdk.messages import one_line

STATE, BUSY, CONSUMER = "state", "busy", "consumer"
_SLOTS = ("slot", "kind", STATE, BUSY, "user", "job", CONSUMER)
_RUNNING = ("running", "user", "name", "slots", "progress")
_QUEUE = ("waiting", "place", "user", "name", CONSUMER, "pri", "slots", "not before", "why")
Row = dict[str, str]


class TopSection(NamedTuple):
    """One table of the view."""

    columns: tuple[str, ...]
    rows: list[Row]


def headline(view: Mapping[str, Any]) -> str:
    """Return `4 slots: 3 used, 1 free; 71% busy; 2 running, 1 pending`."""
    slots = slots_of(view)
    counts = Counter(words(slot.get(wire.STATE)) or "unknown" for slot in slots)
    told = ", ".join(f"{count} {state}" for state, count in counts.most_common())
    parts = [f"{len(slots)} slot{'' if len(slots) == 1 else 's'}" + (f": {told}" if told else "")]
    busy = [share for slot in slots if (share := utilisation(slot)) is not None]
    if busy:
        parts.append(f"{sum(busy) / len(busy):.0%} busy")
    running, wait = objects(view.get(wire.RUNNING)), len(objects(view.get(wire.QUEUE)))
    parked = sum(is_parked(_with_state(job)) for job in running)
    run = len(running) - parked
    parts.append(f"{run} running, {f'{parked} parked, ' if parked else ''}{wait} pending")
    return one_line("; ".join(parts))


def sections(view: Mapping[str, Any]) -> list[TopSection]:
    """Return the slots, the running jobs and the pending jobs, as rows of text. The text is not made inert yet."""
    return [
        TopSection(_SLOTS, _folded([_slot(slot) for slot in slots_of(view)])),
        TopSection(_RUNNING, [_running(job) for job in objects(view.get(wire.RUNNING))]),
        TopSection(_QUEUE, [_waiting(job) for job in objects(view.get(wire.QUEUE))]),
    ]


def utilisation(slot: Mapping[str, Any]) -> float | None:
    """Return the utilization of a slot, from 0 to 1, or None when it is not known."""
    found = number(slot.get(wire.UTILISATION))
    return None if found is None else min(1.0, max(0.0, found))


def slots_of(view: Mapping[str, Any]) -> list[dict[str, Any]]:
    return objects(view.get(wire.SLOTS))


def _slot(slot: Mapping[str, Any]) -> Row:
    holders = objects(slot.get(wire.HOLDERS))
    busy = utilisation(slot)
    return {
        "slot": words(slot.get(wire.ID)),
        "kind": " ".join(filter(None, (words(slot.get(wire.KIND)), words(slot.get(wire.PROFILE))))),
        STATE: ": ".join(filter(None, (words(slot.get(wire.STATE)), words(slot.get(wire.REASON))))),
        BUSY: "" if busy is None else f"{busy:.0%}",
        "user": _each(holders, wire.USER),
        "job": ", ".join(_holder(holder) for holder in holders),
        CONSUMER: _each(holders, wire.CONSUMER),
    }


def _holder(holder: Mapping[str, Any]) -> str:
    """Return the job that holds a slot, with its share if that is not the whole slot."""
    share = number(holder.get(wire.SHARE))
    return words(holder.get(wire.ID)) + (f" ({share:.0%})" if share is not None and share < 1 else "")


def _each(holders: Sequence[Mapping[str, Any]], name: str) -> str:
    return ", ".join(dict.fromkeys(filter(None, (words(holder.get(name)) for holder in holders))))


def _folded(rows: list[Row]) -> list[Row]:
    """Return the rows, with neighbors that differ in their name alone as one row, `cpu-0 .. cpu-3`."""
    found = []
    for _, group in groupby(rows, lambda row: [row[name] for name in _SLOTS[1:]]):
        same = list(group)
        name = same[0]["slot"] + (f" .. {same[-1]['slot']}" if len(same) > 1 else "")
        found.append(same[0] | {"slot": name})
    return found


def _running(job: Mapping[str, Any]) -> Row:
    return {
        "running": words(job.get(wire.ID)),
        "user": words(job.get(wire.USER)),
        "name": words(job.get(wire.APP_NAME)),
        "slots": words(job.get(wire.SLOTS)),
        "progress": _progress(_with_state(job)),
    }


def _progress(job: Mapping[str, Any]) -> str:
    """Return the progress of a job without what the other columns show. The most important pieces come first, because
    a narrow terminal cuts the last ones."""
    is_usual = job[wire.STATE] == states.RUNNING
    workers = number(job.get(wire.WORKERS))
    more = None if workers == number(job.get(wire.SLOTS)) else workers
    where = where_it_is({**job, wire.WORKERS: more, wire.SECONDS_LEFT: None})[1 if is_usual else 0:]
    return fitted([*sorted([*where, *how_it_goes(job)], key=lambda part: part.rank), *time_left(job)])


def _with_state(job: Mapping[str, Any]) -> dict[str, Any]:
    return {**job, wire.STATE: words(job.get(wire.STATE)) or states.RUNNING}


def _waiting(job: Mapping[str, Any]) -> Row:
    return {
        "waiting": words(job.get(wire.ID)),
        "place": words(job.get(wire.QUEUE_POSITION)),
        "user": words(job.get(wire.USER)),
        "name": words(job.get(wire.APP_NAME)),
        CONSUMER: words(job.get(wire.CONSUMER)),
        "pri": words(job.get(wire.PRIORITY)),
        "slots": words(job.get(wire.SLOTS)),
        "not before": short(job.get(wire.EXPECTED_START)),
        "why": words(job.get(wire.MESSAGE)) or words(job.get(wire.REASON)),
    }
