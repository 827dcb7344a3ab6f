"""Choose among revisions by weight, and bound the rate of a token. Pure: the caller gives the time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

#: Most tokens whose rate is remembered. The one that sent nothing for longest is forgotten.
_TOKENS = 10_000


class SmoothChoice:
    """Choose among numbers, each as often as its weight says, in turns as even as possible.

    The smooth weighted round robin of nginx: each number gains its weight, and the largest one pays the sum.
    """

    def __init__(self) -> None:
        self._credit: dict[int, int] = {}

    def choose(self, weights: Mapping[int, int]) -> int:
        """Return one of the numbers, which have positive weights."""
        if len(weights) == 1:
            return next(iter(weights))
        credit = self._credit = {number: self._credit.get(number, 0) + weight for number, weight in weights.items()}
        best = max(credit, key=lambda number: (credit[number], -number))
        credit[best] -= sum(weights.values())
        return best


class TokenRates:
    """The requests per second of each token, as a bucket that holds one second's worth, and at least 1 request."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, token: str, rate: float, now: float) -> float:
        """Take one request of a token. Return 0.0, or the seconds after which there is a next one."""
        most = max(1.0, rate)
        left, when = self._buckets.pop(token, (most, now))
        left = min(most, left + max(0.0, now - when) * rate)
        permitted = left >= 1.0
        self._buckets[token] = (left - 1.0 if permitted else left, now)
        if len(self._buckets) > _TOKENS:
            self._buckets.popitem(last=False)
        return 0.0 if permitted else (1.0 - left) / rate
