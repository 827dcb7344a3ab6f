"""One job in detail, as `dlicmd get` prints it, and the reason for its state, as `dlicmd why` prints it."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dlicmd.cli.console import paint
from dlicmd.cli.show.listing import STATE_STYLES, parameters, tags, user_of
from dlicmd.cli.show.numbers import shown
from dlicmd.cli.show.remedies import remedy
from dlicmd.cli.show.times import precise, since
from dlicmd.cli.show.values import metrics_of
from dlicmd.cli.show.views import elapsed, fitted, last_steps, lost_after, reasons, what_it_says, where_it_is
from dlicmd.contract import states, wire
from dlicmd.contract.argv import ArgvError, CommandLine, parse_argv, split_args
from dlicmd.contract.reading import number, words
from dlicmd.contract.sizes import show_size
from dlicmd.sdk import hints, messages
from dlicmd.sdk.messages import one_line
from dlicmd.sdk.objects import Files

_GAP = "  "
#: Most files that a page names.
_FEW = 4


def page(job: Mapping[str, Any], written: Files | None, errors: Sequence[str], width: int | None) -> list[str]:
    """Return the facts about a job, one in each line, and the commands that are useful next. `written` are the files
    that its program wrote, if known. `errors` are the last lines of its standard error, inert. On a terminal of `width`
    columns, long facts are wrapped."""
    state = states.plain(words(job.get(wire.STATE)))
    head = (words(job.get(wire.ID)), words(job.get(wire.APP_NAME)), state)
    styles = ("bold", "", STATE_STYLES.get(state, ""))
    lines = [_GAP.join(paint(one_line(text), style) if style else one_line(text)
                       for text, style in zip(head, styles, strict=True) if text)]
    known = [*_facts(job, width is not None), *([] if written is None else [("files", _files(written))])]
    facts = [(label, one_line(text)) for label, text in known if text]
    indent = max(len(label) for label, _ in facts) + 2 * len(_GAP) if facts else 0
    for label, text in facts:
        lines += _wrapped(f"{_GAP}{label}".ljust(indent), text, width)
    if errors:
        lines += [paint(f"{_GAP}last lines of standard error:", "dim"), *(_GAP * 2 + line for line in errors)]
    following = f"{_GAP}next: {'; '.join(next_commands(job))}"
    return [*lines, *(paint(line, "dim") for line in messages.fitted(following, width or 0).split("\n"))]


def _wrapped(begin: str, text: str, width: int | None) -> list[str]:
    label = paint(begin, "dim")
    if width is None:
        return [label + text]
    # A path that is too long stays whole, so that it can be copied.
    found = textwrap.wrap(text, max(20, width - len(begin)), break_long_words=False, break_on_hyphens=False) or [""]
    if len(found[0]) > width - len(begin):
        return [label.rstrip(), *(_GAP * 2 + line for line in found)]
    return [label + found[0], *(" " * len(begin) + line for line in found[1:])]


def _of_home(path: str) -> str:
    """Return the path of a folder of this machine with `~` for the home folder; any other path unchanged."""
    home = os.path.join(os.path.expanduser("~"), "")
    return f"~/{path.removeprefix(home)}" if path.startswith(home) and os.path.isdir(path) else path


def _facts(job: Mapping[str, Any], is_terminal: bool) -> Iterator[tuple[str, str]]:
    """Yield the label and the text of each fact; the text is empty if the fact is not known. On a terminal, paths are
    short."""
    line = _line(job)
    is_over = states.is_terminal(words(job.get(wire.STATE)))
    yield "why", "; ".join(reasons(job)) if is_over else what_it_says(job)
    yield "submitted", " by ".join(filter(None, (precise(job.get(wire.CREATE_TIME)), user_of(job))))
    waited = since(job.get(wire.CREATE_TIME), job[wire.START_TIME]) if job.get(wire.START_TIME) else None
    yield "started", precise(job.get(wire.START_TIME)) + (f" (waited {waited})" if waited else "")
    yield "ended", precise(job.get(wire.END_TIME))
    yield ("took" if is_over else "running for"), elapsed(job) or ""
    if job.get(wire.STATE) == states.RUNNING:
        yield "progress", fitted(where_it_is({**job, wire.MESSAGE: ""})[1:])
    yield "metrics", metrics(job)
    speed = number(job.get(wire.SAMPLES_PER_SECOND))
    yield "speed", "" if speed is None else shown(speed, "samples/s")
    yield "tags", ", ".join(filter(None, (tags(job), "favorite" if job.get(wire.FAVORITE) is True else "")))
    yield "note", words(job.get(wire.NOTE))
    yield "workers", _workers(job)
    yield "devices", _devices(line)
    yield "framework", words(job.get(wire.FRAMEWORK)) + (" (elastic)" if str(job.get(wire.ELASTIC)) == "True" else "")
    program = "" if line is None else line.text("--model-main") or ""
    yield "program", " ".join(filter(None, (program, *parameters(job))))
    experiment = words(job.get(wire.EXPERIMENT))
    yield "search", words(job.get(wire.SEARCH)) + (f", experiment {experiment}" if experiment else "")
    yield "data", "" if line is None else line.text("--cs-datastore-meta") or ""
    yield "plan", "" if line is None else line.text("--consumer") or ""
    folder = words(job.get("workDir"))
    yield "runs in", _of_home(folder) if is_terminal else folder


def metrics(job: Mapping[str, Any]) -> str:
    """Return the last values of the metrics: `loss 0.0465, accuracy 0.9883 (step 150)`, or each with a step of its
    own."""
    values = {name: f"{name} {shown(value)}" for name, value in metrics_of(job).items()}
    steps = {name: f"{step}{lost_after(job, name)}".removeprefix(", ") for name, step in last_steps(job).items()}
    if len(set(steps.values())) > 1:
        return ", ".join(_at(text, steps.get(name, "")) for name, text in values.items())
    return _at(", ".join(values.values()), next(iter(steps.values()), ""))


def _at(text: str, step: str) -> str:
    return f"{text} ({step})" if step else text


def _files(written: Files) -> str:
    """Return `3 files, 1.2M`, or with few files their names, too."""
    count, size = len(written.files), show_size(sum(file.bytes or 0 for file in written.files))
    if not count:
        return "none written"
    names = f": {', '.join(file.path for file in written.files)}" if count <= _FEW else ""
    return f"{count}{'' if written.complete else '+'} file{'' if count == 1 else 's'}, {size}{names}"


def _workers(job: Mapping[str, Any]) -> str:
    asked, now = number(job.get(wire.NUM_WORKER)), number(job.get(wire.WORKERS))
    found = "" if asked is None else f"{asked:.0f} requested"
    if now is not None and not states.is_terminal(words(job.get(wire.STATE))):
        found = ", ".join(filter(None, (f"{now:.0f} now", found)))
    counts = ((wire.RESIZES, "resize", "s"), (wire.DEATHS, "death survived", ""))
    told = [f"{count:.0f} {name}{'' if count == 1 else more}" for key, name, more in counts
            if (count := number(job.get(key)))]
    return ", ".join(filter(None, (found, *told)))


def _devices(line: CommandLine | None) -> str:
    """Return the devices that each worker requests: `1 gpu per worker`."""
    if line is None:
        return ""
    kind, count = line.text("--workerDeviceType"), line.amount("--workerDeviceNum")
    if kind is None and count is None:
        return ""
    return f"{1 if count is None else count:g} {kind or 'device'} per worker"


def _line(job: Mapping[str, Any]) -> CommandLine | None:
    """Return the command line of the submission, None if it cannot be read."""
    try:
        return parse_argv(split_args(words(job.get(wire.ARGS))), sent=True)
    except ArgvError:
        return None


def next_commands(job: Mapping[str, Any]) -> list[str]:
    """Return the commands that are useful for a job in this state, after the remedy for a common error."""
    state, exec_id = words(job.get(wire.STATE)), words(job.get(wire.ID))
    if state == states.FINISHED:
        fetch = hints.command("result", exec_id, *([] if job.get(wire.HAS_RESULT, True) else ["--list"]))
        verbs = ["logs", *(["plot"] if metrics_of(job) else [])]
        return [fetch, *(hints.command(verb, exec_id) for verb in verbs)]
    if states.is_terminal(state):
        told = remedy(job) if state == states.ERROR else None
        return [*([] if told is None else [told]), hints.command("logs" if has_run(job) else "why", exec_id)]
    verbs = ["follow", "stop"] if state == states.RUNNING else ["why", "follow", "stop"]
    return [hints.command(verb, exec_id) for verb in verbs]


def has_run(job: Mapping[str, Any]) -> bool:
    """Return whether the program of a job that has ended was started."""
    return job.get(wire.REASON) not in (wire.NEVER_SCHEDULABLE, wire.PENDING_TIMEOUT, wire.DATA, wire.UNSUPPORTED)


def why_ended(job: Mapping[str, Any], errors: Sequence[str]) -> list[str]:
    """Return why a job is in its final state, with the last lines of its standard error."""
    state, exec_id = words(job.get(wire.STATE)), words(job.get(wire.ID))
    took, told = elapsed(job), "; ".join(reasons(job))
    when = precise(job.get(wire.END_TIME))
    head = f"{exec_id} ended {state}" + (f" at {when}" if when else "") + (f", after {took}" if took else "")
    lines = [one_line(head + (f": {told}" if told and state != states.FINISHED else ""))]
    if errors:
        lines += ["last lines of standard error:", *(_GAP + line for line in errors)]
    then = next_commands(job) if has_run(job) else [hints.command("get", exec_id)]
    return [*lines, "next: " + "; ".join(then)]


def why_running(job: Mapping[str, Any]) -> list[str]:
    """Return that a job runs, and its progress."""
    begun = precise(job.get(wire.START_TIME))
    slots = number(job.get(wire.SLOTS))
    held = "" if slots is None else f" on {slots:.0f} slot{'' if slots == 1 else 's'}"
    state = fitted(where_it_is(job)[1:])
    values = metrics(job)
    head = words(job.get(wire.ID)) + (f" has been RUNNING since {begun}" if begun else " is RUNNING") + held
    lines = [one_line(": ".join(filter(None, (head, _GAP.join(filter(None, (state, values)))))))]
    return [*lines, "next: " + "; ".join(next_commands(job))]
