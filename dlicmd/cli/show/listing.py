"""The list of jobs that `dlicmd ls` prints: one line per job, with as many columns as fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dlicmd.cli.show.numbers import shown
from dlicmd.cli.show.table import Column, ranked
from dlicmd.cli.show.times import short, zone
from dlicmd.cli.show.values import METRIC, NamedValue, meant_value, metrics_of, value_text
from dlicmd.cli.show.views import elapsed, is_parked, last_steps, lost_after
from dlicmd.contract import states, wire
from dlicmd.contract.metric_names import spelled
from dlicmd.contract.reading import items, words

STATE_STYLES = {
    states.RUNNING: "green", states.ERROR: "red", states.KILLED: "yellow", "PENDING": "cyan", states.SUBMITTED: "cyan",
}
_ID, _NAME, _USER, _STATE, _TOOK, _METRIC, _AT, _TAGS, _NOTE, _WORKERS, _FRAMEWORK = (
    "id", "name", "user", "state", "took", "metric", "at", "tags", "note", "workers", "framework")
_HEADINGS = (_ID, _NAME, _USER, _STATE, _TOOK, _METRIC, _AT, _TAGS, _NOTE, _WORKERS, _FRAMEWORK)
#: Smallest widths of cells that may be cut.
_LEAST_NAME, _LEAST_NOTE, _LEAST_VALUE, _MOST_METRIC = 16, 12, 10, 28


def lines(
    jobs: Sequence[Mapping[str, Any]], width: int | None, *, users: bool = False, metric: str = "",
    values: Sequence[NamedValue] = (),
) -> list[str]:
    """Return jobs as a table of at most `width` columns, None for any width. `users` shows the user of each job.
    `metric` is the metric to show; the default is the first that a job reported last, a loss if there is one. The
    columns `values` replace this one."""
    started = f"started {zone()}"
    texts = {value: f"{value.kind}.{value.name}" if value.heading in _HEADINGS else value.heading for value in values}
    measured = [Column(text, _LEAST_VALUE) for text in texts.values()] or [Column(metric or _METRIC, _MOST_METRIC, 3),
                                                             Column(_AT, 0, 6)]
    columns = (
        Column(_ID, style=lambda _: "bold"), Column(_NAME, _LEAST_NAME), *([Column(_USER)] if users else ()),
        Column(_STATE, style=lambda state: STATE_STYLES.get(state, "")), Column(started, 0, 1),
        Column(_TOOK, 0, 2), *measured, Column(_TAGS, 0, 5),
        Column(_NOTE, _LEAST_NOTE, 4), Column(_WORKERS, 0, 7), Column(_FRAMEWORK, 0, 8),
    )
    rows = [{**_row(job), started: short(job.get(wire.START_TIME)), metric or _METRIC: metric_text(job, metric),
             _AT: metric_step(job, metric), **{text: value_text(job, value) for value, text in texts.items()}}
            for job in jobs]
    return ranked(rows, columns, width)


def column(job: Mapping[str, Any], name: str) -> str | None:
    """Return a cell by the heading of the list, or the metric or parameter with this name; None for any other name."""
    shown_as = {
        _USER: user_of, _TOOK: lambda job: elapsed(job) or "", "started": lambda job: short(job.get(wire.START_TIME)),
        _METRIC: metric_text, _AT: metric_step, _NOTE: note,
    }
    if name in shown_as:
        return shown_as[name](job)
    value = meant_value(name, [job])
    return None if value is None else value_text(job, value)


def _row(job: Mapping[str, Any]) -> dict[str, str]:
    return {
        _ID: words(job.get(wire.ID)),
        _NAME: words(job.get(wire.APP_NAME)),
        _USER: user_of(job),
        _STATE: states.plain(words(job.get(wire.STATE))),
        _TOOK: elapsed(job) or "",
        _TAGS: tags(job),
        _NOTE: note(job),
        _WORKERS: words(job.get(wire.WORKERS)) or words(job.get(wire.NUM_WORKER)),
        _FRAMEWORK: words(job.get(wire.FRAMEWORK)),
    }


def user_of(job: Mapping[str, Any]) -> str:
    """Return the user that submitted a job."""
    return words(job.get(wire.CREATOR)) or words(job.get("userName"))


def metric_text(job: Mapping[str, Any], name: str = "") -> str:
    """Return `loss 0.0465`: the metric of this name without its name, or the first metric with its name; "" if there
    is none."""
    found = metrics_of(job)
    if name:
        return value_text(job, NamedValue(METRIC, name))
    return next((f"{one} {shown(value)}" for one, value in found.items()), "")


def metric_step(job: Mapping[str, Any], name: str = "") -> str:
    """Return the step of the metric that `metric_text` shows: `epoch 3/10`; "" if there is none. Later values
    that are not finite are counted: `step 7, then 12 not finite`."""
    found = last_steps(job)
    shown_name = spelled(name, found) or "" if name else next(iter(found), "")
    return f"{found.get(shown_name, '')}{lost_after(job, shown_name)}".removeprefix(", ")


def tags(job: Mapping[str, Any]) -> str:
    """Return the tags of a job, with commas between them."""
    return ", ".join(words(one) for one in items(job.get(wire.TAGS)))


def note(job: Mapping[str, Any]) -> str:
    """Return what matters most beside the state: why the job failed or waits, else the note of the user, else the
    parameters of its program."""
    state = words(job.get(wire.STATE))
    message = words(job.get(wire.MESSAGE))
    if state != states.FINISHED and message:
        return message
    return "waits for slots" if is_parked(job) else words(job.get(wire.NOTE)) or " ".join(parameters(job))


def parameters(job: Mapping[str, Any]) -> list[str]:
    """Return the words of a job's program: those that the server sends, or those after `--` in the command line of the
    submission."""
    sent = job.get(wire.ARGUMENTS)
    if sent is not None:
        return sent.split() if isinstance(sent, str) else [words(word) for word in items(sent)]
    from dlicmd.contract.argv import ArgvError, parse_argv, split_args  # for servers that do not send the words

    try:
        return parse_argv(split_args(words(job.get(wire.ARGS))), sent=True).program
    except ArgvError:
        return []
