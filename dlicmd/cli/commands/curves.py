"""The metrics of jobs, fetched from a server."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from dlicmd.cli.commands.logged import logged
from dlicmd.cli.show.series import Series, of_losses, read
from dlicmd.contract import states, wire
from dlicmd.contract.metric_names import is_loss, meant
from dlicmd.contract.reading import number, words
from dlicmd.sdk.client import Client

#: Names of the losses on servers that give no curves.
TRAIN, TEST = "train/loss", "test/loss"
#: Known units of a step. Any other unit counts as `step`.
_STEP_UNITS = ("step", "epoch", "batch", "line", "second")
#: Maximum number of metrics that an exec object names.
_MOST_NAMED = 8


class Metrics(NamedTuple):
    """The metrics of the job `id`. `series` has those with points; `left` maps a name to the number of values without
    a point, because they are not finite. `others` are names of metrics that were not fetched. `ended`: the job
    has ended."""

    id: str
    series: list[Series]
    left: dict[str, int]
    others: list[str]
    ended: bool

    @property
    def names(self) -> list[str]:
        """The names of all metrics, as far as known."""
        return list(dict.fromkeys((*(one.metric for one in self.series), *self.left, *self.others)))


def chosen(patterns: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the names that patterns mean (see `metric_names.meant`). Without patterns, return the names of losses; if
    no name is one of a loss, the first name."""
    if patterns:
        return list(dict.fromkeys(name for pattern in patterns for name in meant(pattern, names)))
    return [name for name in names if is_loss(name)] or list(names[:1])


def fetched(
    client: Client, found: Mapping[str, Any], offered: Collection[str], patterns: Sequence[str] | None,
) -> Metrics:
    """Return the metrics of an exec that `patterns` mean, or more; all metrics for None.

    Args:
        client: The client.
        found: The exec.
        offered: Extensions of the server. Without the extension `curves`, the losses in recorded metrics or logs are
            the only metrics.
        patterns: See `chosen`.
    """
    exec_id, name = words(found.get(wire.ID)), words(found.get(wire.APP_NAME))
    if wire.EXT_CURVES not in offered:
        losses = logged(client, found, offered)
        series = [Series(exec_id, metric, of_losses(line), name)
                  for metric, line in ((TRAIN, losses.train), (TEST, losses.test)) if line]
        return Metrics(exec_id, series, {TRAIN: losses.lost} if losses.lost else {}, [],
                       states.is_terminal(words(found.get(wire.STATE))))
    named = found.get(wire.LAST_METRICS)
    known = list(named) if isinstance(named, dict) else []
    # An exec with fewer names than the most has no other metrics, so that only the chosen ones need to be fetched.
    asked = chosen(patterns, known) if patterns is not None and len(known) < _MOST_NAMED else []
    return _metrics(found, client.curves(exec_id, asked), known)


def measured(client: Client, found: Mapping[str, Any]) -> Metrics:
    """Return the CPU cores and the memory that the processes of an exec used over time, as metrics."""
    return _metrics(found, client.resources(words(found.get(wire.ID))), [])


def _metrics(found: Mapping[str, Any], curves: Sequence[Mapping[str, Any]], known: list[str]) -> Metrics:
    """Return the metrics in the curves of an exec. `known` are names of others."""
    exec_id, name = words(found.get(wire.ID)), words(found.get(wire.APP_NAME))
    series: list[Series] = []
    left: dict[str, int] = {}
    for curve in curves:
        metric, points = words(curve.get(wire.NAME)), read(curve.get(wire.POINTS))
        unit, skipped = words(curve.get(wire.STEP_UNIT)), number(curve.get(wire.LEFT))
        if points:
            series.append(Series(exec_id, metric, points, name, unit if unit in _STEP_UNITS else _STEP_UNITS[0],
                                 words(curve.get(wire.UNIT)), words(curve.get(wire.SOURCE))))
        if skipped:
            left[metric] = int(skipped)
    return Metrics(exec_id, series, left, known, states.is_terminal(words(found.get(wire.STATE))))
