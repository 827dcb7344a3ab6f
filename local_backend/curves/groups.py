"""Which curves belong into one chart: the same metric of training, validation and test."""

from __future__ import annotations

import re
from collections.abc import Iterable

from local_backend.curves.book import same

#: Words of a name that say to which part of the data a value belongs.
_PARTS = frozenset({"train", "training", "val", "valid", "validation", "test", "eval", "dev"})
_FIRST = ("loss", "accuracy")
#: Deaths explain why a training has fewer workers.
_WITH = {"deaths": "workers"}


def base(name: str) -> str:
    """Return the metric of a curve: `val_loss`, `test/loss` and `loss` have the same one."""
    words = [word for word in re.split("_+", same(name)) if word]
    return "_".join(word for word in words if word not in _PARTS) or "_".join(words)


def grouped(names: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Return (metric, names of its curves): losses and accuracies first, then in the order of the names."""
    found: dict[str, list[str]] = {}
    for name in names:
        metric = base(name)
        members = found.setdefault(_WITH.get(metric, metric), [])
        if name not in members:
            members.append(name)
    return sorted(found.items(), key=lambda one: _rank(one[0]))


def _rank(metric: str) -> int:
    if metric in _FIRST:
        return _FIRST.index(metric)
    return len(_FIRST) if set(_FIRST) & set(metric.split("_")) else len(_FIRST) + 1
