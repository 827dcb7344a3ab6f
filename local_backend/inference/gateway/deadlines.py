"""Deadlines of many requests, most of which end long before. Pure: the caller gives the time."""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

Item = TypeVar("Item")
#: Seconds of one bucket: a deadline is noticed at most that much later.
STEP = 0.02


class Deadlines(Generic[Item]):
    """Items by their deadline, in buckets: adding and removing take constant time."""

    def __init__(self) -> None:
        self._buckets: dict[int, dict[Item, None]] = {}
        self._order: list[int] = []

    def add(self, item: Item, deadline: float) -> int:
        """Add an item. Return the bucket, which `remove` needs."""
        number = int(deadline / STEP) + 1
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = {}
            heapq.heappush(self._order, number)
        bucket[item] = None
        return number

    def remove(self, item: Item, bucket: int) -> None:
        """Remove an item, if it is still there."""
        found = self._buckets.get(bucket)
        if found is not None:
            found.pop(item, None)

    def next(self) -> float | None:
        """Return when to call `due` next; None if no item is there."""
        while self._order and not self._buckets[self._order[0]]:
            del self._buckets[heapq.heappop(self._order)]
        return self._order[0] * STEP if self._order else None

    def due(self, now: float) -> list[Item]:
        """Remove and return the items whose deadline has passed."""
        found: list[Item] = []
        while self._order and self._order[0] * STEP <= now:
            found += self._buckets.pop(heapq.heappop(self._order))
        return found
