"""The rules that slow down guesses of passwords.

- An account from one address: after FREE failures, each try must wait 1 to LONGEST seconds. After a successful logon of
  the account from this address, FREE_TRUSTED replaces FREE for TRUSTED seconds.
- An account from all addresses: after FREE_ACCOUNT failures, each try must wait 1 to LONGEST_ACCOUNT seconds, except
  from addresses with such a successful logon.
- An address for all accounts: after FREE_ADDRESS failures, answers to wrong passwords take longer, up to LONGEST_DELAY.
  These failures never refuse a logon, because many users may share an address.

Waits and delays double with each further failure. During a wait, no password is compared.
"""

from __future__ import annotations

import hashlib
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

FREE, LONGEST = 5, 300.0
#: The limit of NIST SP 800-63B for failures in a row.
FREE_TRUSTED, TRUSTED = 100, 12 * 3600.0
#: More failures than one address can cause before `LONGEST` slows it down.
FREE_ACCOUNT, LONGEST_ACCOUNT = 50, 30.0
#: Seconds until the answer to a wrong password.
FREE_ADDRESS, DELAY, LONGEST_DELAY = 20, 1.0, 8.0
#: Seconds without a failure after which the failures are forgotten.
FORGOTTEN = 900.0
#: Maximum number of remembered pairs, accounts and addresses, each. The one that was not used for the longest time is
#: forgotten first.
MOST = 10_000


class Throttle:
    """Failures and successes by account and address. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pairs, self._accounts, self._addresses = Failures(clock), Failures(clock), Failures(clock)
        self._trusted: OrderedDict[Hashable, float] = OrderedDict()

    def wait(self, user: str, address: str) -> float:
        """Return the seconds until this user may try again from this address, 0 if now."""
        account, network = account_key(user), network_of(address)
        trusted = self._is_trusted(account, network)
        of_pair = self._pairs.pause((account, network), FREE_TRUSTED if trusted else FREE, LONGEST)
        return of_pair if trusted else max(of_pair, self._accounts.pause(account, FREE_ACCOUNT, LONGEST_ACCOUNT))

    def failed(self, user: str, address: str) -> float:
        """Count a wrong password. Return the seconds by which to delay the answer."""
        account, network = account_key(user), network_of(address)
        self._pairs.count((account, network))
        self._accounts.count(account)
        over = self._addresses.count(network) - FREE_ADDRESS
        return min(DELAY * 2.0 ** min(max(over, 0), 20), LONGEST_DELAY)

    def passed(self, user: str, address: str) -> None:
        """Note a correct password: the account is trusted at this address, and its failures there are forgotten."""
        account, network = account_key(user), network_of(address)
        self._pairs.forget((account, network))
        _keep(self._trusted, (account, network), self._clock())

    def _is_trusted(self, account: bytes, network: str) -> bool:
        last = self._trusted.get((account, network))
        return last is not None and self._clock() - last <= TRUSTED


class Failures:
    """Numbers of failures in a row, by key."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kept: OrderedDict[Hashable, tuple[int, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def count(self, key: Hashable) -> int:
        """Count a failure, and return the number of failures in a row."""
        now = self._clock()
        count, last = self._kept.get(key, (0, now))
        count = count + 1 if now - last <= FORGOTTEN else 1
        _keep(self._kept, key, (count, now))
        return count

    def pause(self, key: Hashable, free: int, longest: float) -> float:
        """Return the seconds until the next try: 0 before `free` failures, then 1, 2, 4... seconds after the last one,
        at most `longest`."""
        count, last = self._kept.get(key, (0, 0.0))
        since = self._clock() - last
        if count < free or since > FORGOTTEN:
            return 0.0
        return max(0.0, min(2.0 ** min(count - free, 20), longest) - since)

    def forget(self, key: Hashable) -> None:
        """Forget the failures of a key."""
        self._kept.pop(key, None)


def _keep(kept: OrderedDict[Hashable, Any], key: Hashable, value: Any) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > MOST:
        kept.popitem(last=False)


def account_key(user: str) -> bytes:
    """Return the key of an account. Callers choose the names, which may be long, so the key is a digest."""
    return hashlib.sha256(user.encode("utf-8", "surrogatepass")).digest()[:16]


def network_of(address: str) -> str:
    """Return the network that counts as one address: an IPv6 machine has a whole /64 of addresses."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is None:
            return str(ipaddress.ip_network((found, 64), strict=False))
        return str(found.ipv4_mapped)
    return address
