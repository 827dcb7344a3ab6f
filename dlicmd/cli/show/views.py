"""Views of an exec that is followed: plain lines, or (in `dlicmd.cli.show.live`) a live line."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TextIO

from dlicmd.cli.console import aside
from dlicmd.cli.show.numbers import shown
from dlicmd.cli.show.remedies import remedy
from dlicmd.cli.show.times import duration, localized, since
from dlicmd.contract import states, wire
from dlicmd.contract.reading import at, number, words
from dlicmd.sdk import hints
from dlicmd.sdk.messages import inert, one_line

#: Seconds between two progress lines on a screen that only scrolls.
PROGRESS_EVERY = 5.0


class View(Protocol):
    """Shows an exec while it runs."""

    def line(self, text: str, task: str, stream: str) -> None:
        """Show a line of the program's output."""

    def state(self, found: Mapping[str, Any]) -> None:
        """Show the exec as it is now."""

    def close(self) -> None:
        """End the view."""


class Plain:
    """Shows the program's output unchanged, each stream on ours. Progress goes to standard error at intervals.

    With `data_on_stdout`, standard output is kept for data, and everything goes to standard error.
    """

    def __init__(self, data_on_stdout: bool = False) -> None:
        self._out: TextIO = sys.stderr if data_on_stdout else sys.stdout
        self._last: tuple[Any, ...] = ()
        self._shown = ""
        self._next = 0.0

    def line(self, text: str, task: str, stream: str) -> None:
        """See View. The text is made inert on a terminal only."""
        target = sys.stderr if stream == "stderr" else self._out
        target.write((inert(text) if target.isatty() else text) + "\n")
        target.flush()

    def state(self, found: Mapping[str, Any]) -> None:
        """See View."""
        now = time.monotonic()
        mark = (found.get(wire.STATE), found.get(wire.WORKERS), found.get(wire.MESSAGE))
        text = progress_text(found)
        if mark != self._last or (now >= self._next and text != self._shown):
            self._last, self._shown, self._next = mark, text, now + PROGRESS_EVERY
            aside(f"[{text}]")

    def close(self) -> None:
        """See View."""


class ViewPart(NamedTuple):
    """A piece of a status line. If the line is too long, pieces of the highest `rank` are left out first; rank 0
    stays."""

    text: str
    rank: int = 0


def fitted(parts: Sequence[ViewPart], width: int | None = None) -> str:
    """Return the parts in one line of at most `width` columns, as far as leaving parts out can achieve that."""
    kept = list(parts)
    while width is not None and len(_joined(kept)) > width and (most := max(part.rank for part in kept)):
        kept = [part for part in kept if part.rank != most]
    return _joined(kept)


def _joined(parts: Sequence[ViewPart]) -> str:
    return "  ".join(part.text for part in parts)


def progress_text(found: Mapping[str, Any]) -> str:
    """Return state and progress: `RUNNING  2 workers  epoch 3/10  step 40/120  812 samples/s  train loss 0.1234`."""
    return fitted([*where_it_is(found), *how_it_goes(found)])


def where_it_is(found: Mapping[str, Any]) -> list[ViewPart]:
    """Return `RUNNING  2 workers  epoch 3/10  step 40/120  12s left`, as far as known, or what the exec waits for."""
    state = str(found.get(wire.STATE) or states.SUBMITTED)
    parts = [ViewPart(states.plain(state))]
    if state == states.RUNNING:
        parts += _activity(found)
    parts += [
        *_count(found, "epoch", wire.EPOCH, wire.EPOCHS, rank=2),
        *_count(found, "step", wire.STEP, wire.STEPS, rank=0),
    ]
    parts += time_left(found)
    if told := what_it_says(found):
        parts.append(ViewPart(f"({told})"))
    return [ViewPart(inert(part.text).replace("\n", " "), part.rank) for part in parts]


def time_left(found: Mapping[str, Any]) -> list[ViewPart]:
    """Return `12s left`, or nothing if that is not known."""
    left = _number(found, wire.SECONDS_LEFT)
    return [] if left is None or _is_trained(found) else [ViewPart(f"{duration(left)} left")]


def what_it_says(found: Mapping[str, Any]) -> str:
    """Return the server's message about an exec that has not ended, in one line: what it waits for or does; "" for
    none."""
    over = states.is_terminal(str(found.get(wire.STATE) or states.SUBMITTED))
    return "" if over else one_line(localized(str(found.get(wire.MESSAGE) or "")))


def _activity(found: Mapping[str, Any]) -> list[ViewPart]:
    """Return the number of workers, or the activity without workers."""
    workers = _number(found, wire.WORKERS)
    if _is_trained(found):
        return [ViewPart("finishing")]
    if is_parked(found) and not workers:
        return [ViewPart("parked")]
    if workers:
        return [ViewPart(f"{workers:.0f} worker" + ("" if workers == 1 else "s"), 1)]
    return [ViewPart("starting")] if workers == 0 and not _number(found, wire.STEP) else []


def is_parked(found: Mapping[str, Any]) -> bool:
    """Return whether the exec is running without a slot, so that it does not train."""
    return found.get(wire.STATE) == states.RUNNING and number(found.get(wire.SLOTS)) == 0


def _is_trained(found: Mapping[str, Any]) -> bool:
    """Return whether all steps of the training are done."""
    step, steps = _number(found, wire.STEP), _number(found, wire.STEPS)
    return step is not None and bool(steps) and step >= (steps or 0)


def how_it_goes(found: Mapping[str, Any]) -> list[ViewPart]:
    """Return `812 samples/s  train loss 0.1234  train accuracy 0.9567  3 resizes  1 death survived`, as far as
    known. Metrics that the program reported replace the loss and the accuracy of the engine."""
    forms = ((wire.SAMPLES_PER_SECOND, "{} samples/s", 2), (wire.LOSS, "train loss {}", 1),
             (wire.ACCURACY, "train accuracy {}", 3))
    reported = last_metrics(found)
    numbers = ((_number(found, key), form, rank) for key, form, rank in (forms[:1] if reported else forms))
    parts = [ViewPart(form.format(shown(value)), rank) for value, form, rank in numbers if value is not None]
    parts += [ViewPart(inert(f"{name} {shown(value)}{lost_after(found, name)}"), 1 + at)
              for at, (name, value) in enumerate(reported.items())]
    step = last_step(found)
    if step and _number(found, wire.STEP) is None:
        parts.insert(0, ViewPart(inert(step), 2))
    counts = ((_number(found, wire.RESIZES), "resize", ""), (_number(found, wire.DEATHS), "death", " survived"))
    return parts + [
        ViewPart(f"{count:.0f} {what}{'' if count == 1 else 's'}{more}", 4) for count, what, more in counts if count
    ]


def last_metrics(found: Mapping[str, Any]) -> dict[str, float]:
    """Return the last values of the metrics that a program reported, by name, in the order of the server."""
    last = found.get(wire.LAST_METRICS)
    values = {name: number(at(value, "value")) for name, value in last.items()} if isinstance(last, dict) else {}
    return {name: value for name, value in values.items() if value is not None}


def lost_after(found: Mapping[str, Any], name: str) -> str:
    """Return how many values of a metric that are not finite came after its last value: `, then 12 not finite`."""
    left = number(at(at(found.get(wire.LAST_METRICS), name), wire.LEFT))
    return f", then {left:.0f} not finite" if left else ""


def last_steps(found: Mapping[str, Any]) -> dict[str, str]:
    """Return the step of the last value of each metric with its unit, such as `epoch 3/10`; "" if the program named
    no step."""
    steps = {}
    for name in last_metrics(found):
        last = at(found.get(wire.LAST_METRICS), name)
        step, total = number(at(last, wire.STEP)), number(at(last, wire.STEPS))
        steps[name] = step_text(step, words(at(last, wire.STEP_UNIT)), total)
    return steps


def step_text(step: float | None, unit: str, total: float | None = None) -> str:
    """Return a step with its unit, and the last step if that is known: `epoch 3/10`; "" if the program named none."""
    if step is None or unit == "line":
        return ""
    return f"{unit or 'step'} {shown(step)}" + ("" if total is None else f"/{shown(total)}")


def last_step(found: Mapping[str, Any]) -> str:
    """Return the step of the last values of the metrics; "" if they have different steps, or none."""
    steps = set(last_steps(found).values())
    return steps.pop() if len(steps) == 1 else ""


def share_done(found: Mapping[str, Any]) -> float | None:
    """Return how much of the training is done, from 0 to 1, or None when that is not known."""
    for done, total in ((wire.STEP, wire.STEPS), (wire.EPOCH, wire.EPOCHS)):
        first, last = _number(found, done), _number(found, total)
        if first is not None and last:
            return min(1.0, max(0.0, first / last))
    return None


def elapsed(found: Mapping[str, Any]) -> str | None:
    """Return how long an exec has run, or None before it runs."""
    return since(found.get(wire.START_TIME), found.get(wire.END_TIME))


def last_words(found: Mapping[str, Any], exec_id: str) -> str:
    """Return one line about an exec that has ended: how it ended, and the next command."""
    state, text = found.get(wire.STATE), outcome(found, exec_id)
    if state == states.FINISHED:
        there = found.get(wire.HAS_RESULT, True)
        return text + (f"; fetch its result with: {hints.command('--exec-trainresult', exec_id)}" if there else "")
    has_run = found.get(wire.REASON) not in (wire.NEVER_SCHEDULABLE, wire.PENDING_TIMEOUT, wire.DATA)
    if state != states.ERROR or not has_run:
        return text
    told = remedy(found)
    return f"{text} ({hints.command('--exec-trainlogs', exec_id)})" + (f"; next: {told}" if told else "")


def outcome(found: Mapping[str, Any], exec_id: str) -> str:
    """Return the state of an exec that has ended, its duration, and why it failed."""
    state = str(found.get(wire.STATE))
    took = elapsed(found) or since(found.get(wire.CREATE_TIME), found.get(wire.END_TIME))
    why = "" if state == states.FINISHED else "; ".join(reasons(found))
    return f"{exec_id} {state}" + (f" after {took}" if took else "") + (f": {why}" if why else "")


def reasons(found: Mapping[str, Any]) -> list[str]:
    """Return why an exec has not ended well: its exit code if that is informative, and the server's message."""
    message, code = str(found.get(wire.MESSAGE) or ""), _number(found, wire.EXIT_CODE)
    told = code in (None, 0, 1) or re.search(rf"\b{code:.0f}\b", message)
    return [text for text in ("" if told else f"exit code {code:.0f}", message) if text]


def _count(found: Mapping[str, Any], name: str, key: str, total_key: str, rank: int) -> list[ViewPart]:
    value, total = _number(found, key), _number(found, total_key)
    if value is None:
        return []
    return [ViewPart(f"{name} {value:.0f}" + (f"/{total:.0f}" if total is not None else ""), rank)]


def _number(found: Mapping[str, Any], key: str) -> float | None:
    return number(found.get(key))
