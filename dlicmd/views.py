"""What one sees of an exec that is followed: nothing, plain lines, or (in `dlicmd.live`) a live line on a terminal."""

from __future__ import annotations

import sys
import time
from typing import Any, Protocol, TextIO

from dlicmd.console import inert
from dlicmd.contract import states, wire
from dlicmd.times import duration, since

#: Seconds between two progress lines on a screen that only scrolls.
PROGRESS_EVERY = 5.0


class View(Protocol):
    """Shows an exec while it runs."""

    def line(self, text: str, task: str, stream: str) -> None:
        """A line of the program's output."""

    def state(self, found: dict[str, Any]) -> None:
        """The exec, as it is now."""

    def close(self) -> None:
        """Nothing more will come."""


class Silent:
    """Shows nothing."""

    def line(self, text: str, task: str, stream: str) -> None:
        """See View."""

    def state(self, found: dict[str, Any]) -> None:
        """See View."""

    def close(self) -> None:
        """See View."""


class Plain:
    """The program's output as it is, each stream on ours; progress on standard error, now and then.

    With `data_on_stdout` standard output is kept for data, and everything goes to standard error.
    """

    def __init__(self, data_on_stdout: bool = False) -> None:
        self._out: TextIO = sys.stderr if data_on_stdout else sys.stdout
        self._last: tuple[Any, ...] = ()
        self._shown = ""
        self._next = 0.0

    def line(self, text: str, task: str, stream: str) -> None:
        """See View. Made inert on a terminal only."""
        target = sys.stderr if stream == "stderr" else self._out
        target.write((inert(text) if target.isatty() else text) + "\n")
        target.flush()

    def state(self, found: dict[str, Any]) -> None:
        """See View."""
        now = time.monotonic()
        mark = (found.get(wire.STATE), found.get(wire.WORKERS))
        text = progress_text(found)
        if mark != self._last or (now >= self._next and text != self._shown):
            self._last, self._shown, self._next = mark, text, now + PROGRESS_EVERY
            print(f"[{text}]", file=sys.stderr, flush=True)

    def close(self) -> None:
        """See View."""


def progress_text(found: dict[str, Any]) -> str:
    """State and progress in one line: `RUNNING  2 workers  epoch 3/10  step 40/120  812 samples/s  loss 0.1234`."""
    return "  ".join(part for part in (where_it_is(found), how_it_goes(found)) if part)


def where_it_is(found: dict[str, Any]) -> str:
    """`RUNNING  2 workers  epoch 3/10  step 40/120  12s left`, as far as it is known, or what it waits for."""
    state = str(found.get(wire.STATE) or states.SUBMITTED)
    parts = [states.SHORT.get(state, state)]
    workers, left = _number(found, wire.WORKERS), _number(found, wire.SECONDS_LEFT)
    if workers is not None:
        parts.append(f"{workers:.0f} worker" + ("" if workers == 1 else "s"))
    parts += [text for text in (_count(found, "epoch", wire.EPOCH, wire.EPOCHS),
                                _count(found, "step", wire.STEP, wire.STEPS)) if text]
    if left is not None:
        parts.append(f"{duration(left)} left")
    if not states.is_terminal(state) and found.get(wire.MESSAGE):
        parts.append(f"({found[wire.MESSAGE]})")
    return inert("  ".join(parts)).replace("\n", " ")


def how_it_goes(found: dict[str, Any]) -> str:
    """`812 samples/s  loss 0.1234  accuracy 0.9567`, as far as it is known."""
    parts = []
    for key, form in ((wire.SAMPLES_PER_SECOND, "{:,.0f} samples/s"), (wire.LOSS, "loss {:.4f}"),
                      (wire.ACCURACY, "accuracy {:.4f}")):
        value = _number(found, key)
        if value is not None:
            parts.append(form.format(value))
    return "  ".join(parts)


def share_done(found: dict[str, Any]) -> float | None:
    """How much of the training is done, from 0 to 1, or None when that is not known."""
    for done, total in ((wire.STEP, wire.STEPS), (wire.EPOCH, wire.EPOCHS)):
        first, last = _number(found, done), _number(found, total)
        if first is not None and last:
            return min(1.0, max(0.0, first / last))
    return None


def last_words(found: dict[str, Any], exec_id: str) -> str:
    """One line about an exec that has ended: how, after how long, and what to do next."""
    state = str(found.get(wire.STATE))
    took = since(found.get(wire.START_TIME) or found.get(wire.CREATE_TIME), found.get(wire.END_TIME))
    text = f"{exec_id} {state}" + (f" after {took}" if took else "")
    if found.get(wire.MESSAGE) and state != states.FINISHED:
        text += f": {found[wire.MESSAGE]}"
    if state == states.FINISHED:
        return f"{text}; fetch its result with: dlicmd --exec-trainresult {exec_id}"
    return f"{text} (dlicmd --exec-trainlogs {exec_id})" if state == states.ERROR else text


def _count(found: dict[str, Any], name: str, key: str, total_key: str) -> str:
    value, total = _number(found, key), _number(found, total_key)
    if value is None:
        return ""
    return f"{name} {value:.0f}" + (f"/{total:.0f}" if total is not None else "")


def _number(found: dict[str, Any], key: str) -> float | None:
    value = found.get(key)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
