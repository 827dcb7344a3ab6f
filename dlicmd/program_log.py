"""`dlicmd.log`: a training program records its metrics. Imports the standard library only: the backend copies this file
for programs whose Python lacks the package `dlicmd`."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

#: The file in LOG_DIR. Each line is {"t": epoch seconds, "s": step, "u": unit of the step, "v": {name: value}}.
FILE = "dlicmd-log.jsonl"
#: From so many calls on, only every tenth, hundredth, ... call with the same names is written.
_DENSE = 100_000
#: Variables with the rank of this process. The first one that is set counts.
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "NODE_RANK")

_calls: dict[tuple[str, ...], int] = {}
_warned: set[str] = set()
_opened: tuple[int, int] = (0, -1)  # process, descriptor


def log(
    values: dict[str, Any] | None = None, /, *, step: float | None = None, epoch: float | None = None, **named: Any
) -> None:
    """Record metrics of a training: `dlicmd.log(loss=0.1, step=3)`, `dlicmd.log({"val/loss": 0.2}, epoch=1)`.

    Does nothing outside of a job, and in processes of a distributed job with a rank other than 0. Never raises.

    Args:
        values: Name → number, for names that are not Python words. A tensor with one element is a number.
        step: Step that the values belong to. Without `step` and `epoch`, calls with the same names are counted: 0, 1,
            2, ... A later value of the same step replaces an earlier one.
        epoch: Epoch that the values belong to, if there is no `step`.
        named: Name → number.
    """
    try:
        if os.environ.get("DLI_EXECID") and next(filter(None, map(os.environ.get, _RANKS)), "0") == "0":
            _write({**(values or {}), **named}, step, epoch)
    except Exception as problem:
        _warn(f"cannot record metrics: {type(problem).__name__}: {problem}")


def _write(values: dict[str, Any], step: Any, epoch: Any) -> None:
    key = tuple(values)
    count = _calls[key] = _calls.get(key, -1) + 1
    if count >= _DENSE and count % 10 ** (len(str(count // _DENSE))):
        return
    numbers = {str(name): found for name, value in values.items() if (found := _number(str(name), value)) is not None}
    place = step if step is not None else epoch if epoch is not None else count
    at, unit = _number("step", place), "epoch" if step is None and epoch is not None else "step"
    if numbers and at is not None:
        line = json.dumps({"t": round(time.time(), 3), "s": at, "u": unit, "v": numbers}) + "\n"
        os.write(_file(), line.encode(errors="replace"))


def _number(name: str, value: Any) -> float | None:
    """Return a value as a number. For any other value, print one warning per name and return None."""
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except Exception:
        _warn(f"{name} is not a number: {type(value).__name__}")
        return None


def _file() -> int:
    """Return the descriptor of the file in this process. Raises OSError."""
    global _opened
    if _opened[0] != os.getpid():
        path = os.path.join(os.environ["LOG_DIR"], FILE)
        _opened = (os.getpid(), os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600))
    return _opened[1]


def _warn(text: str) -> None:
    """Print a warning once. Python's warnings module could raise an error instead, depending on the program."""
    try:
        if text not in _warned and len(_warned) < 100:
            _warned.add(text)
            print(f"dlicmd.log: {text[:300]}", file=sys.stderr, flush=True)
    except Exception:  # standard error is closed
        return
