"""The names of metrics: which direction is better, which names are losses, and which names a pattern means."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TypeVar

T = TypeVar("T")

_LOSS = "loss"
#: Words in the names of metrics for which a lower value is better.
_LOWER = frozenset({
    _LOSS, "error", "err", "mae", "mse", "rmse", "mape", "smape", "msle", "rmsle", "nll", "ppl", "perplexity",
    "entropy", "cost", "wer", "cer", "ter", "bpc", "bpb", "fid", "kl", "divergence", "regret", "latency", "time",
    "duration", "seconds", "ms", "memory",
})
#: Words in the names of metrics for which a higher value is better.
_HIGHER = frozenset({
    "accuracy", "acc", "auc", "auroc", "ap", "map", "f1", "fscore", "precision", "recall", "sensitivity", "specificity",
    "score", "iou", "miou", "dice", "r2", "psnr", "ssim", "bleu", "rouge", "meteor", "reward", "return", "hits", "ndcg",
    "mrr", "top1", "top5",
})
#: A word ends where letters end, and before a capital after a small letter: `valLoss`, `eval/rmse`, `top1_err`.
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def is_lower_better(name: str) -> bool:
    """Return whether a lower value of a metric is better. This is so for losses, errors, times and similar names; for
    all other names, a higher value is better."""
    return is_loss(name) or any(word in _LOWER or word.endswith("error") for word in _words(name))


def has_direction(name: str) -> bool:
    """Return whether a name says which values of its metric are better. Learning rates, counts and norms say
    nothing."""
    words = (*_words(name), *re.findall(r"[a-z]+\d", name.lower()))
    return is_lower_better(name) or not _HIGHER.isdisjoint(words)


def is_loss(name: str) -> bool:
    """Return whether a name is that of a loss, such as `loss`, `train/loss`, `valLoss` or `logloss`."""
    return any(word.endswith(_LOSS) or word == "losses" for word in _words(name))


def best(name: str, values: Iterable[float]) -> float:
    """Return the best of several values of a metric. Raises ValueError when there is none."""
    return min(values) if is_lower_better(name) else max(values)


def best_first(items: Iterable[T], value: Callable[[T], float | None], name: str, worst: bool = False) -> list[T]:
    """Return items in the order of a metric: the best value first, or with `worst` the worst. Items without a value
    (None) come last. Items with equal values keep their order."""
    known, unknown = [], []
    for item in items:
        found = value(item)
        if found is None:
            unknown.append(item)
        else:
            known.append((found, item))
    known.sort(key=lambda pair: pair[0], reverse=is_lower_better(name) == worst)
    return [*(item for _, item in known), *unknown]


def spelled(name: str, known: Iterable[str]) -> str | None:
    """Return the spelling of a name among the known names: the name itself, or else the first that differs only in the
    case of letters; None if there is none."""
    alike = [one for one in known if one.casefold() == name.casefold()]
    return name if name in alike else next(iter(alike), None)


def meant(pattern: str, names: Iterable[str]) -> list[str]:
    """Return the names that a user means by `pattern`, in their order: the name itself, in any case of letters; or else
    the names that match its wildcards (`*`, `?`, `[abc]`); or else the names whose last part it is, such as
    `train/loss` for `loss`."""
    known = list(dict.fromkeys(names))
    if alike := [name for name in known if name.casefold() == pattern.casefold()]:
        return alike
    wanted = pattern.lower()
    if matching := [name for name in known if fnmatchcase(name.lower(), wanted)]:
        return matching
    return [name for name in known if re.split(r"[/._ ]", name.lower())[-1] == wanted]


def kind(name: str) -> str:
    """Return the last word of a name, which tells metrics on the same scale: `accuracy` for `val_accuracy` and
    `train/accuracy`, `loss` for all losses. A name without Latin letters is its own kind."""
    return _LOSS if is_loss(name) else (_words(name) or [name])[-1]


def losses_first(names: Sequence[str]) -> list[str]:
    """Return names in the order that people read them: losses before others, each group in its order."""
    return sorted(names, key=lambda name: not is_loss(name))


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(name)]
