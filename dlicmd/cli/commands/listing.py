"""The verb `ls`: the newest jobs, selected and sorted."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from dlicmd.cli.commands import saved_views
from dlicmd.cli.console import paint
from dlicmd.cli.render import emit, emit_value, show_columns
from dlicmd.cli.session import Session
from dlicmd.cli.show.execs import cell
from dlicmd.cli.show.listing import column, lines, user_of
from dlicmd.cli.show.table import terminal_width
from dlicmd.cli.show.times import moment
from dlicmd.cli.show.values import KINDS, METRIC, NamedValue, in_order, meant_value, values_of
from dlicmd.contract import states, wire
from dlicmd.contract.exits import Exit
from dlicmd.contract.reading import epoch
from dlicmd.sdk import hints
from dlicmd.sdk.errors import UsageProblem
from dlicmd.sdk.messages import inert, info
from dlicmd.sdk.objects import Exec, Execs, SavedView

#: Jobs that fit a usual terminal with the prompt.
_SCREEN = 20
_SORTS = ("started", "took", "name", "state", "user", "id")


def ls(session: Session) -> int:
    """Print the newest jobs."""
    line, output = session.line, session.output
    if saved_views.managed(session):
        return Exit.DONE
    view = saved_views.chosen(session)
    on_screen = sys.stdout.isatty() and not (output.is_data or output.columns)
    limit = line.number("--limit")
    limit = limit if limit is not None else _SCREEN if on_screen else 0
    found, sorted_by = _selected(session, limit, view)
    shown = found[:limit] if limit else found
    chosen = _columns(line.many("--column") or view.columns, found, sorted_by)
    if line.text(saved_views.SAVE) is not None:
        saved_views.save(session, view, words=_words(session, view), sorted_by=sorted_by, columns=chosen)
    if output.is_data:
        emit_value(shown, output)
    elif output.columns:
        show_columns(shown, output.columns, _cell)
    elif not shown:
        emit("no such jobs" if _narrows(session) else f"no jobs yet; submit one: {hints.command('run', 'train.py')}")
    else:
        width = terminal_width() if on_screen else None
        metric = sorted_by.name if sorted_by is not None and sorted_by.kind == METRIC else ""
        emit("\n".join(lines(shown, width, users=line.flag("--all-users"), metric=metric, values=chosen)))
        if on_screen and found.total > len(shown):
            emit(paint(f"... and {found.total - len(shown):,} more: {hints.command('ls', '--limit', '0')}", "dim"))
    return Exit.DONE


def _columns(names: Sequence[str], jobs: Sequence[Exec], sorted_by: NamedValue | None) -> list[NamedValue]:
    """Return the values with the names of --column, and behind them the parameter that the list is sorted by. Report
    names that no job has."""
    found = {name: meant_value(name, jobs) for name in names}
    if unknown := [inert(name) for name, value in found.items() if value is None]:
        info(f"no listed job has a metric or a parameter {', '.join(unknown)}")
    chosen = dict.fromkeys(value for value in found.values() if value is not None)
    if sorted_by is not None and (chosen or sorted_by.kind != METRIC):
        chosen.setdefault(sorted_by)
    return list(chosen)


def _cell(job: Mapping[str, Any], name: str) -> str:
    """Return a column that the user selects: one that the list shows, a metric, or a field of the job."""
    return cell(job, name) if name in job or (found := column(job, name)) is None else found


def _narrows(session: Session) -> bool:
    names = ("--state", "--since", "--search", "--find", saved_views.VIEW)
    return any(session.line.text(name) is not None for name in names) or bool(session.line.many("--tag"))


def _selected(session: Session, limit: int, view: SavedView) -> tuple[Execs, NamedValue | None]:
    """Return the selected jobs in their order, and the metric or parameter that they are sorted by, if any. Raises
    UsageProblem."""
    line = session.line
    wanted, since = _states(line.text("--state") or view.state or None), _since(line.text("--since"))
    sort, of_view = line.text("--sort"), view.sort_by
    query = []
    if session.client.extensions():  # other servers may sort and filter by other rules
        query = [f"{wire.SORT_BY}={quote(of_view, safe='') or f'{wire.ID}:desc'}"]
        if limit and since is None and sort is None:
            query.append(f"{wire.LIMIT}={limit}")
        if wanted is not None:
            query.append(f"{wire.STATE}={','.join(sorted(wanted))}")
    if line.flag("--all-users") or view.everyone:
        query.append(f"{wire.ALL}=true")
    if (search := line.text("--search")) is not None:
        query.append(wire.search_query(search))
    if words := _words(session, view):
        session.need(wire.EXT_LABELS, "cannot find jobs by words and tags")
        query.append(f"{wire.FIND}={quote(words, safe='')}")
    found = session.client.execs("&".join(query) or None)
    kept = [job for job in found if (wanted is None or job.state in wanted)
            and (since is None or (epoch(job.create_time) or 0.0) >= since) and search in (None, job.search)]
    total = found.total if len(kept) == len(found) else len(kept)
    if sort is None and of_view:
        return Execs(kept, total), meant_value(of_view.rpartition(":")[0] or of_view, kept)
    kept.sort(key=_age, reverse=True)
    jobs, sorted_by = (kept, None) if sort is None else _sorted(kept, sort)
    return Execs(jobs, total), sorted_by


def _words(session: Session, view: SavedView) -> str:
    """Return the words that the server finds jobs by: those of the view and of --find, and the tags."""
    return " ".join(filter(None, [view.find, session.line.text("--find") or "",
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


def _sorted(jobs: Sequence[Exec], sort: str) -> tuple[list[Exec], NamedValue | None]:
    """Return jobs sorted by a column, a metric or a parameter, and this metric or parameter. A `-` before the name
    reverses the order. Raises UsageProblem for any other name."""
    name, down = sort.removeprefix("-"), sort.startswith("-")
    keys = {
        "started": lambda job: -(epoch(job.start_time) or 0.0), "took": lambda job: -_seconds(job),
        "name": lambda job: job.app_name.lower(), "state": lambda job: states.plain(job.state),
        "user": user_of, "id": lambda job: (len(job.id), job.id),
    }
    if name in keys:
        return sorted(jobs, key=keys[name], reverse=down), None
    value = meant_value(name, jobs)
    if value is None:
        known = dict.fromkeys(f"{'' if kind == METRIC else f'{kind}.'}{one}" for kind in KINDS for job in jobs
                              for one in values_of(job, kind))
        raise UsageProblem(f"--sort: '{inert(sort)}' is neither a column nor a metric or parameter of these jobs; use "
                           f"one of {', '.join([*_SORTS, *map(inert, known)])}")
    return in_order(jobs, value, down), value


def _seconds(job: Exec) -> float:
    """Return how long a job has run, in seconds."""
    import time  # only for this order

    begin, end = epoch(job.start_time), epoch(job.end_time)
    return 0.0 if begin is None else (time.time() if end is None else end) - begin
