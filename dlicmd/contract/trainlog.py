"""The losses in the logs of trainings, in the known formats of programs and platforms."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from dlicmd.contract.reading import at, number, words

TRAIN, TEST = "train", "test"
_BATCHES = "batches"
#: The largest loss that is accepted: far above real losses. A chart can compute with it, because the limit of floating
#: point is far away.
_LARGEST = 1e100
#: Lines of ELog for a training step and for a test, the three lines of the elastic engine, and one of
#: evaluation-metrics.txt.
_LINES = re.compile(
    r"Train,\s*Timestamp: [0-9]+,\s*Global steps: (?P<step>[0-9]{1,15}),\s*Iteration: [0-9]+,"
    r"\s*Loss: (?P<train>[^,\s]+)"
    r"|Test,\s*Timestamp: [0-9]+,\s*Loss: (?P<test>[^,\s]+)"
    r"|Iteration (?P<iteration>[0-9]{1,15}): tag train_loss, simple_value (?P<train_tag>\S+)"
    r"|Iteration [0-9]+: tag test_loss, simple_value (?P<test_tag>\S+)"
    r"|batches :(?P<batch>[0-9]{1,15}) (?P<batch_loss>\S+)"
    r"|(?P<record>\{\s*\"meta\".*)"
)


class Losses(NamedTuple):
    """Step → loss, in the order of the steps; `lost` counts the losses that are not finite numbers."""

    train: dict[int, float]
    test: dict[int, float]
    lost: int = 0


def losses(text: str) -> Losses:
    """Return the losses in one log. If a step is logged twice, the last value counts.

    A test belongs to the training step before it, unless its record names a step. The numbers on lines about tests are
    not used: they restart with every epoch.
    """
    return _gathered(map(_point, _LINES.finditer(text)))


def recorded(records: Iterable[Any]) -> Losses:
    """Return the losses in records of evaluation-metrics.txt."""
    return _gathered(map(_recorded, records))


def _gathered(points: Iterable[tuple[str, int | None, str]]) -> Losses:
    found: dict[str, dict[int, float]] = {TRAIN: {}, TEST: {}, _BATCHES: {}}
    last = lost = 0
    for series, named, loss in points:
        if series not in found:
            continue
        value = number(loss)
        step = last if named is None else named
        last = step
        if value is None or abs(value) > _LARGEST:
            lost += 1
        else:
            found[series][step] = value
    # The engine logs both series; its batch losses are those of one worker.
    return Losses(_in_order(found[TRAIN] or found[_BATCHES]), _in_order(found[TEST]), lost)


def merged(logs: Iterable[Losses]) -> Losses:
    """Return the losses of several workers together. For a step that several have, return the mean."""
    known = list(logs)
    train, test = _mean([log.train for log in known]), _mean([log.test for log in known])
    return Losses(train, test, sum(log.lost for log in known))


def _point(match: re.Match[str]) -> tuple[str, int | None, str]:
    """Return the series, the step if the line names one, and the loss as text."""
    if match["record"] is not None:
        return _recorded(_value(match["record"]))
    for series, step, loss in ((TRAIN, "step", "train"), (TRAIN, "iteration", "train_tag"),
                               (_BATCHES, "batch", "batch_loss")):
        if match[loss] is not None:
            return series, int(match[step]), match[loss]
    return TEST, None, match["test"] or match["test_tag"] or ""


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _recorded(record: Any) -> tuple[str, int | None, str]:
    """Return the same for a record of metrics. The series is "" if the record has no loss, or is not a record."""
    loss = words(at(record, "values", "loss", "value"))
    step = number(at(record, "etimes", "iteration", "value"))
    known = step is not None and 0 <= step < 10**15
    return (words(at(record, "grouplabel")) if loss else ""), int(step or 0) if known else None, loss


def _in_order(found: dict[int, float]) -> dict[int, float]:
    return dict(sorted(found.items()))


def _mean(logs: list[dict[int, float]]) -> dict[int, float]:
    gathered: dict[int, list[float]] = {}
    for log in logs:
        for step, loss in log.items():
            gathered.setdefault(step, []).append(loss)
    return _in_order({step: sum(found) / len(found) for step, found in gathered.items()})
