"""The verb `ls`: the newest jobs, selected and sorted."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from dlicmd.cli.console import paint
from dlicmd.cli.render import emit, emit_value, show_columns
from dlicmd.cli.session import Session
from dlicmd.cli.show.execs import cell
from dlicmd.cli.show.listing import column, lines, metrics_of, user_of, value_of
from dlicmd.cli.show.table import terminal_width
from dlicmd.cli.show.times import moment
from dlicmd.contract import states, wire
from dlicmd.contract.exits import Exit
from dlicmd.contract.metric_names import best_first, meant
from dlicmd.contract.reading import epoch
from dlicmd.sdk import hints
from dlicmd.sdk.errors import UsageProblem
from dlicmd.sdk.messages import inert
from dlicmd.sdk.objects import Exec, Execs

#: Jobs that fit a usual terminal with the prompt.
_SCREEN = 20
_SORTS = ("started", "took", "name", "state", "user", "id")


def ls(session: Session) -> int:
    """Print the newest jobs."""
    line, output = session.line, session.output
    on_screen = sys.stdout.isatty() and not (output.is_data or output.columns)
    limit = line.number("--limit")
    limit = limit if limit is not None else _SCREEN if on_screen else 0
    found, metric = _selected(session, limit)
    shown = found[:limit] if limit else found
    if output.is_data:
        emit_value(shown, output)
    elif output.columns:
        show_columns(shown, output.columns, _cell)
    elif not shown:
        emit("no such jobs" if _narrows(session) else f"no jobs yet; submit one: {hints.command('run', 'train.py')}")
    else:
        width = terminal_width() if on_screen else None
        emit("\n".join(lines(shown, width, users=line.flag("--all-users"), metric=metric)))
        if on_screen and found.total > len(shown):
            emit(paint(f"... and {found.total - len(shown):,} more: {hints.command('ls', '--limit', '0')}", "dim"))
    return Exit.DONE


def _cell(job: Mapping[str, Any], name: str) -> str:
    """Return a column that the user selects: one that the list shows, a metric, or a field of the job."""
    return cell(job, name) if name in job or (found := column(job, name)) is None else found


def _narrows(session: Session) -> bool:
    names = ("--state", "--since", "--search", "--find")
    return any(session.line.text(name) is not None for name in names) or bool(session.line.many("--tag"))


def _selected(session: Session, limit: int) -> tuple[Execs, str]:
    """Return the selected jobs in their order, and the name of the metric that they are sorted by, if any. Raises
    UsageProblem."""
    line = session.line
    wanted, since, sort = _states(line.text("--state")), _since(line.text("--since")), line.text("--sort")
    query = []
    if session.client.extensions():  # other servers may sort and filter by other rules
        query = [f"{wire.SORT_BY}={wire.ID}:desc"]
        if limit and since is None and sort is None:
            query.append(f"{wire.LIMIT}={limit}")
        if wanted is not None:
            query.append(f"{wire.STATE}={','.join(sorted(wanted))}")
    if line.flag("--all-users"):
        query.append(f"{wire.ALL}=true")
    if (search := line.text("--search")) is not None:
        query.append(wire.search_query(search))
    if words := _words(session):
        session.need(wire.EXT_LABELS, "cannot find jobs by words and tags")
        query.append(f"{wire.FIND}={quote(words, safe='')}")
    found = session.client.execs("&".join(query) or None)
    kept = [job for job in found if (wanted is None or job.state in wanted)
            and (since is None or (epoch(job.create_time) or 0.0) >= since) and search in (None, job.search)]
    total = found.total if len(kept) == len(found) else len(kept)
    kept.sort(key=_age, reverse=True)
    jobs, metric = (kept, "") if sort is None else _sorted(kept, sort)
    return Execs(jobs, total), metric


def _words(session: Session) -> str:
    """Return the words that the server finds jobs by: those of --find, and the tags."""
    return " ".join(filter(None, [session.line.text("--find") or "",
                                  *(f'tag:"{tag}"' for tag in session.line.many("--tag"))]))


def _states(text: str | None) -> frozenset[str] | None:
    try:
        return None if text is None else states.selected(text)
    except ValueError as problem:
        raise UsageProblem(inert(f"--state: {problem}")) from None


def _since(text: str | None) -> float | None:
    try:
        return None if text is None else moment(text)
    except ValueError as problem:
        raise UsageProblem(inert(f"--since: {problem}")) from None


def _age(job: Exec) -> tuple[float, int, str]:
    """Return the sort key for age, the newest last. Scripts submit several jobs in a second: then the number in the id
    decides."""
    return epoch(job.create_time) or 0.0, len(job.id), job.id


def _sorted(jobs: Sequence[Exec], sort: str) -> tuple[list[Exec], str]:
    """Return jobs sorted by a column or by a metric, and the name of the metric. A `-` before the name reverses the
    order. Raises UsageProblem for any other name."""
    name, down = sort.removeprefix("-"), sort.startswith("-")
    keys = {
        "started": lambda job: -(epoch(job.start_time) or 0.0), "took": lambda job: -_seconds(job),
        "name": lambda job: job.app_name.lower(), "state": lambda job: states.plain(job.state),
        "user": user_of, "id": lambda job: (len(job.id), job.id),
    }
    if name in keys:
        return sorted(jobs, key=keys[name], reverse=down), ""
    known = list(dict.fromkeys(one for job in jobs for one in metrics_of(job)))
    metric = next(iter(meant(name, known)), None)
    if metric is None:
        raise UsageProblem(f"--sort: '{inert(sort)}' is neither a column nor a metric of these jobs; use one of "
                           f"{', '.join([*_SORTS, *map(inert, known)])}")
    return best_first(jobs, lambda job: value_of(job, metric), metric, worst=down), metric


def _seconds(job: Exec) -> float:
    """Return how long a job has run, in seconds."""
    import time  # only for this order

    begin, end = epoch(job.start_time), epoch(job.end_time)
    return 0.0 if begin is None else (time.time() if end is None else end) - begin
