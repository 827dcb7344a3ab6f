"""Delays guesses of passwords: after several wrong passwords a caller has to wait, longer each time."""

from __future__ import annotations

import hashlib
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable

#: Number of wrong passwords without a wait. Each further one doubles the wait, from 1 second to LONGEST seconds.
FREE = 5
LONGEST = 300.0
#: Seconds after which a series of failures is forgotten.
_FORGOTTEN = 900.0
#: Maximum number of remembered series. A further one replaces the series whose last failure is the oldest.
_MOST = 10_000


class Throttle:
    """Failures by user and address. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[tuple[bytes, str], tuple[int, float]] = OrderedDict()

    def wait(self, user: str, address: str) -> float:
        """Return the seconds until this user may try again from this address, 0 if now."""
        count, last = self._failures.get(_key(user, address), (0, 0.0))
        if count < FREE or self._clock() - last > _FORGOTTEN:
            return 0.0
        return max(0.0, last + min(2.0 ** min(count - FREE, 20), LONGEST) - self._clock())

    def failed(self, user: str, address: str) -> None:
        """Count a wrong password."""
        key, now = _key(user, address), self._clock()
        count, last = self._failures.pop(key, (0, now))
        self._failures[key] = (count + 1 if now - last <= _FORGOTTEN else 1, now)
        if len(self._failures) > _MOST:
            self._failures.popitem(last=False)

    def passed(self, user: str, address: str) -> None:
        """Forget the wrong passwords after a correct one."""
        self._failures.pop(_key(user, address), None)


def _key(user: str, address: str) -> tuple[bytes, str]:
    """Return the key of a series. Callers choose the user names, which may be long, so the key contains a digest. An
    IPv6 machine has a whole /64 of addresses, so the key contains the network."""
    return hashlib.sha256(user.encode("utf-8", "surrogatepass")).digest()[:16], _network(address)


def _network(address: str) -> str:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    return str(ipaddress.ip_network((found, 64), strict=False)) if found.version == 6 else address
