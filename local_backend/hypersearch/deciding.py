"""Decides how a search goes on, from its rows and those of its execs. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from dlicmd.contract import states
from local_backend.hypersearch.definition import Definition
from local_backend.store import searches
from local_backend.store.execs import ExecRow
from local_backend.store.searches import ExperimentRow, SearchRow

_ENDED = frozenset({searches.FINISHED, searches.FAILED, searches.KILLED})
#: Experiments with so many different parameters that equal values are worth a remark.
_SUSPICIOUS = 3
_OVER_TIME = "the search reached its maximum run time (maxRunTime)"


class Seen(NamedTuple):
    """What the exec of an experiment shows: its new state, and why. FINISHED and WAITING are true only if the values of
    the metrics are found."""

    state: str
    message: str | None = None


def seen(  # noqa: PLR0911
    row: ExperimentRow, exec_row: ExecRow | None, ending: str | None
) -> Seen | None:
    """Return the new state of an experiment with an exec; None if nothing has changed."""
    if exec_row is None or exec_row.deleted:
        return Seen(searches.KILLED, f"{row.exec_id} was deleted before its result was read")
    if exec_row.state == states.FINISHED:
        return Seen(searches.FINISHED)
    if exec_row.state == states.ERROR:
        return Seen(searches.FAILED, exec_row.message or f"{exec_row.id} ended with an error")
    if exec_row.state == states.KILLED:
        if ending == searches.TIME:
            return Seen(searches.FAILED, _OVER_TIME)
        return Seen(searches.KILLED, exec_row.message)
    if row.state == searches.WAITING:
        return None
    if exec_row.rested is not None and exec_row.rested == row.resource:
        return Seen(searches.WAITING)
    state = searches.RUNNING if exec_row.state in (states.RUNNING, states.RECOVERING) else searches.SUBMITTED
    return None if state == row.state else Seen(state)


def told(definition: Definition, rows: Collection[ExperimentRow], ending: str | None) -> list[int]:
    """Return the ids of the experiments whose results the algorithm learns now, in order. In a batch, they become known
    all at once, when each has ended; otherwise in the order in which they ended. After a search has begun to end,
    nothing becomes known: a restart runs the experiments again that the end has killed."""
    if ending is not None:
        return []
    new = [row for row in rows if row.told is None and row.state in _ENDED | {searches.WAITING}]
    if definition.refill == "batch":
        return [] if any(row.open for row in rows) else sorted(row.id for row in new)
    return [row.id for row in sorted(new, key=lambda row: (row.end_time or 0.0, row.id))]


def ending(search: SearchRow, definition: Definition, rows: Iterable[ExperimentRow], now: float) -> str | None:
    """Return why the search must start no further experiment from now on; None if it may go on."""
    if definition.max_minutes is not None and search.seconds(now) >= definition.max_minutes * 60:
        return searches.TIME
    if definition.max_failed is not None:
        failed = sum(row.state == searches.FAILED for row in rows)
        if failed > definition.max_failed:
            return searches.FAILURES
    return None


def due(search: SearchRow, definition: Definition, now: float) -> float | None:
    """Return the seconds until the run time of a search is over; None without a limit."""
    return None if definition.max_minutes is None else max(0.0, definition.max_minutes * 60 - search.seconds(now))


def outcome(
    definition: Definition, rows: Sequence[ExperimentRow], why: str, message: str | None
) -> tuple[str, str | None]:
    """Return the last state of a search whose experiments have ended, and its message."""
    if why == searches.STOP:
        return searches.STOPPED, message
    if why == searches.BROKEN:
        return searches.FAILED, message
    if why == searches.FAILURES:
        failed = sum(row.state == searches.FAILED for row in rows)
        return searches.FAILED, (f"{failed} experiments have failed; maxFailedJobNum permits {definition.max_failed}. "
                                 f"{_first(rows)}")
    if any(row.state == searches.FINISHED for row in rows):
        return searches.FINISHED, _OVER_TIME if why == searches.TIME else message or _equal(definition, rows)
    reason = _OVER_TIME if why == searches.TIME else None
    if not rows:
        return searches.FAILED, reason or message or "the algorithm suggested no experiment"
    return searches.FAILED, f"no experiment has delivered {definition.metric}. {reason or _first(rows)}"


def _equal(definition: Definition, rows: Sequence[ExperimentRow]) -> str | None:
    """Return a remark if experiments with different parameters all have the same results; None otherwise."""
    done = [row for row in rows if row.state == searches.FINISHED]
    results = {(row.metric, *(row.measures.get(name) for name, _ in definition.objectives)) for row in done}
    if len(results) > 1 or len({row.parameters for row in done}) < _SUSPICIOUS:
        return None
    return (f"all {len(done)} experiments have {definition.metric} {done[0].metric:g}. Check that the program reads "
            "the parameters of the search")


def _first(rows: Sequence[ExperimentRow]) -> str:
    """Return why the first experiment without a result has none."""
    row = next((row for row in rows if row.message and row.state in (searches.FAILED, searches.KILLED)), None)
    return "" if row is None else f"Experiment {row.id}: {row.message}"
