"""A fair queue for work that takes much CPU time and memory: hashes of passwords.

Addresses take turns, and within an address its accounts take turns. So an attempt waits for at most one attempt of each
other address, and for at most one of each other account of its own address. The queue is bounded. When it is full, the
address with the most waiting attempts loses its newest attempt, which is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Hashable

from local_backend.errors import Busy

#: Maximum number of attempts that wait: of all addresses, and of one address.
MOST, MOST_OF_ADDRESS = 1000, 200

_Attempts = OrderedDict[Hashable, "deque[asyncio.Future[None]]"]


class Turns:
    """Lets at most `at_a_time` attempts work at the same time. Use it in one event loop."""

    def __init__(self, at_a_time: int) -> None:
        self._free = at_a_time
        self._waiting: OrderedDict[str, _Attempts] = OrderedDict()
        self._counts: dict[str, int] = {}

    @property
    def length(self) -> int:
        """The number of attempts that wait."""
        return sum(self._counts.values())

    @contextlib.asynccontextmanager
    async def turn(self, address: str, account: Hashable) -> AsyncIterator[None]:
        """Wait for a turn, and hold it within the block. Raises Busy (`auth.too_many_tries`) if the queue is full."""
        if self._free:
            self._free -= 1
        else:
            await self._queued(address, account)
        try:
            yield
        finally:
            self._pass_on()

    async def _queued(self, address: str, account: Hashable) -> None:
        if self._counts.get(address, 0) >= MOST_OF_ADDRESS:
            raise _full()
        if self.length >= MOST:
            longest = max(self._counts, key=lambda one: self._counts[one])
            if self._counts[longest] <= self._counts.get(address, 0) + 1:
                raise _full()
            self._drop(longest)
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(address, OrderedDict()).setdefault(account, deque()).append(mine)
        self._counts[address] = self._counts.get(address, 0) + 1
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled() and mine.exception() is None:
                self._pass_on()
            else:
                self._remove(address, account, mine)
            raise

    def _pass_on(self) -> None:
        """Give the turn of this attempt to the next one."""
        while self._waiting:
            address, accounts = next(iter(self._waiting.items()))
            account, attempts = next(iter(accounts.items()))
            first = attempts[0]
            accounts.move_to_end(account)
            self._waiting.move_to_end(address)
            self._remove(address, account, first)
            if not first.done():  # else its call was cancelled
                first.set_result(None)
                return
        self._free += 1

    def _drop(self, address: str) -> None:
        """Refuse the newest attempt of an address, of the account with the most attempts."""
        accounts = self._waiting[address]
        account = max(reversed(accounts), key=lambda one: len(accounts[one]))
        last = accounts[account][-1]
        self._remove(address, account, last)
        if not last.done():
            last.set_exception(_full())

    def _remove(self, address: str, account: Hashable, one: asyncio.Future[None]) -> None:
        accounts = self._waiting.get(address, OrderedDict())
        attempts = accounts.get(account, deque())
        if one not in attempts:
            return
        attempts.remove(one)
        self._counts[address] -= 1
        if not attempts:
            del accounts[account]
        if not accounts:
            del self._waiting[address], self._counts[address]


def _full() -> Busy:
    return Busy("auth.too_many_tries", "Too many logons at the same time; try again in 1 s", retry_after=1)
