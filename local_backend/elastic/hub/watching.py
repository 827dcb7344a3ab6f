"""The values of an epoch, and the hub's decisions that depend on them: early stopping and the best checkpoint. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from local_backend.elastic.hub.events import BatchResult, accuracy, mean_loss, mean_metrics

#: Values of an epoch by name: only values that were computed in that epoch.
Values = Mapping[str, float]

#: Begin of the names of values of a validation.
VALIDATION = "val_"

#: If the name of a value contains one of these words, lower is better.
LOWER_IS_BETTER = ("loss", "error", "mae", "mse", "perplexity")


@dataclass(frozen=True)
class Totals:
    """Sums over the committed steps of an epoch, in the order of steps and shards: the same bits for every number of
    workers."""

    samples: int = 0
    loss: float = 0.0
    #: Samples for which the number of right predictions is known, and this number.
    known: int = 0
    correct: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    #: Samples of each metric: in a step with several phases, each phase has its own metrics.
    measured: Mapping[str, int] = field(default_factory=dict)

    def add(self, results: Iterable[BatchResult]) -> Totals:
        """Return the totals including the results of a step, which are in the order of their shards."""
        samples, loss, known, correct, metrics = self.samples, self.loss, self.known, self.correct, dict(self.metrics)
        measured = dict(self.measured)
        for result in results:
            samples += result.count
            loss += result.loss * result.count
            if result.correct is not None:
                known += result.count
                correct += result.correct
            for name, value in result.metrics.items():
                metrics[name] = metrics.get(name, 0.0) + value * result.count
                measured[name] = measured.get(name, 0) + result.count
        return Totals(samples, loss, known, correct, metrics, measured)

    def values(self) -> dict[str, float]:
        """Return the means over the samples: `loss`, `accuracy` if it is known, and the metrics."""
        if not self.samples:
            return {}
        right = {"accuracy": self.correct / self.known} if self.known else {}
        own = {name: value / self.measured[name] for name, value in self.metrics.items()}
        return {"loss": self.loss / self.samples, **right, **own}


def validation_values(tested: tuple[BatchResult, ...]) -> dict[str, float]:
    """Return the values of a validation; {} without results. `tested`: the results in the order of their batches."""
    if not tested:
        return {}
    right = accuracy(tested)
    own = {"loss": mean_loss(tested), **({} if right is None else {"accuracy": right}), **mean_metrics(tested)}
    return {f"{VALIDATION}{name}": value for name, value in own.items()}


@dataclass(frozen=True)
class WatchRule:
    """The value to watch, and the change of it that is an improvement."""

    #: Name of the value; None for the default.
    monitor: str | None = None
    #: "min" or "max": which values are better; None to derive it from the name.
    mode: str | None = None
    min_delta: float = 0.0


@dataclass(frozen=True)
class Watch:
    """The rules that depend on the values of epochs."""

    #: Rule of schedulers that depend on a value; None without any.
    plateau: WatchRule | None = None
    #: Rule of early stopping, and the epochs without an improvement after which training ends.
    stopping: WatchRule | None = None
    patience: int = 0
    #: Rule of the best checkpoint.
    best: WatchRule | None = None

    @property
    def _rules(self) -> list[tuple[str, WatchRule]]:
        """The rules by the names of their options."""
        rules = (("monitor", self.plateau), ("early_stopping", self.stopping), ("save_best", self.best))
        return [(option, rule) for option, rule in rules if rule is not None]

    def unvalidated(self) -> str | None:
        """Return why a training without validation is not possible; None if it is."""
        for option, rule in self._rules:
            if (rule.monitor or "").startswith(VALIDATION):
                return (
                    f"{option} monitors {rule.monitor!r}, but no epoch is validated: datasets_function must return a "
                    "test set, and validation_freq must be from 1 to the number of epochs"
                )
        return None

    def unknown(self, values: Values, validated: bool, validates: bool) -> str | None:
        """Return why a monitored value is missing in an epoch; None if all are present or may still come.

        `validated`: this epoch was validated. `validates`: some epoch is validated.
        """
        for option, rule in self._rules:
            name = monitored(rule, validates)
            later = name.startswith(VALIDATION) and validates and not validated
            if name not in values and not later:
                known = ", ".join(values)
                return f"{option} monitors {name!r}, but an epoch has no such value; available: {known}"
        return None

    def stops(self, epochs: Sequence[Values], validates: bool) -> str | None:
        """Return why training ends after the last of these epochs; None when training continues."""
        if self.stopping is None:
            return None
        name = monitored(self.stopping, validates)
        series = [values[name] for values in epochs if name in values]
        if not epochs or name not in epochs[-1]:
            return None
        waited = since_best(series, self.stopping)
        if waited < self.patience:
            return None
        return f"{name} has not improved for {waited} {'epoch' if waited == 1 else 'epochs'}"

    def is_best(self, epochs: Sequence[Values], validates: bool) -> bool:
        """Return whether the last of these epochs is the best so far."""
        if self.best is None or not epochs:
            return False
        name = monitored(self.best, validates)
        series = [values[name] for values in epochs if name in values]
        return name in epochs[-1] and not math.isnan(series[-1]) and since_best(series, self.best) == 0


def monitored(rule: WatchRule, validates: bool) -> str:
    """Return the name of the value that a rule watches."""
    return rule.monitor or ("val_loss" if validates else "loss")


def since_best(series: Sequence[float], rule: WatchRule) -> int:
    """Return how many values came after the last improvement. NaN is not an improvement."""
    mode = rule.mode or mode_of(rule.monitor or "loss")
    best, since = math.inf if mode == "min" else -math.inf, 0
    for value in series:
        better = value < best - rule.min_delta if mode == "min" else value > best + rule.min_delta
        best, since = (value, 0) if better else (best, since + 1)
    return since


def mode_of(name: str) -> str:
    """Return "min" for a value that is better when it is lower, else "max"."""
    return "min" if any(part in name.lower() for part in LOWER_IS_BETTER) else "max"


def append_history(
    history: dict[str, list[float]], epoch: int, values: Values
) -> None:
    """Make `values` the item `epoch` (from 0) of each list of the history.

    If the epoch lacks a value, its last known value is repeated. Epochs before the first known value are NaN.
    """
    for name in [*history, *(name for name in values if name not in history)]:
        series = history.setdefault(name, [])
        del series[epoch:]
        series.extend([math.nan] * (epoch - len(series)))
        series.append(values[name] if name in values else series[-1] if series else math.nan)
