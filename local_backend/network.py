"""Connections to addresses that users name. The server makes these connections, so it refuses some addresses.

The server refuses link-local addresses and other addresses at which clouds give credentials to every caller on the
machine, in all forms in which an IPv6 address contains an IPv4 address. It refuses addresses that belong to no single
machine. A server for a team also refuses its own loopback. A name is resolved
once, and the connection goes to the address that was checked: a different DNS answer a moment later has no effect.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from typing import Any

#: Maximum number of addresses of one name to try.
_MOST = 4
#: Addresses of these networks contain an IPv4 address in the last 4 bytes, and a translator forwards connections to it:
#: NAT64 (RFC 6052), IPv4-compatible addresses, and translated addresses (RFC 2765).
_CONTAINING = tuple(map(ipaddress.ip_network, ("64:ff9b::/96", "::/96", "::ffff:0:0:0/96")))
#: NAT64 with a prefix that an operator chose (RFC 8215).
_LOCAL_NAT64 = ipaddress.ip_network("64:ff9b:1::/48")
_IPV4 = 0xFFFFFFFF
#: Metadata services of clouds, besides the link-local addresses: of AWS, Alibaba, Azure, Google and Oracle.
_METADATA = frozenset(map(ipaddress.ip_address, (
    "fd00:ec2::254", "100.100.100.200", "168.63.129.16", "fd20:ce::254", "192.0.0.192",
)))
#: Linux connects to its own machine for 0.0.0.0.
_THIS = ipaddress.ip_network("0.0.0.0/8")
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class AddressRefused(OSError):
    """The server does not connect to this address."""


def is_permitted(address: str, loopback: bool) -> bool:
    """Return whether the server may connect to an address. `loopback` permits loopback addresses."""
    found = ipaddress.ip_address(address.partition("%")[0])
    return all(_is_permitted(one, loopback) for one in _meant(found))


def _meant(found: _Address) -> list[_Address]:
    """Return the address, or the IPv4 addresses that an IPv6 address leads to."""
    if isinstance(found, ipaddress.IPv4Address) or found.is_loopback or found.is_unspecified:
        return [found]
    if found in _LOCAL_NAT64:
        # Its prefix may have 48, 56, 64 or 96 bits, and bits 64 to 71 are always zero (RFC 6052).
        several = [ipaddress.IPv4Address(_after(prefix, int(found))) for prefix in (48, 56, 64, 96)]
        return [one for one in several if one not in _THIS] or [several[-1]]
    within = [found.ipv4_mapped, found.sixtofour, *(found.teredo or ())]
    if any(found in network for network in _CONTAINING):
        within.append(ipaddress.IPv4Address(int(found) & _IPV4))
    return [one for one in within if one is not None] or [found]


def _after(prefix: int, bits: int) -> int:
    """Return the 32 bits of an IPv4 address after a prefix of so many bits."""
    if prefix == 96:
        return bits & _IPV4
    # The address without bits 64 to 71.
    joined = bits >> 64 << 56 | bits & (1 << 56) - 1
    return joined >> 120 - prefix - 32 & _IPV4


def _is_permitted(found: _Address, loopback: bool) -> bool:
    if found.is_loopback:
        return loopback
    return not (found.is_link_local or found.is_multicast or found.is_unspecified or found.is_reserved
                or found in _METADATA or (found.version == 4 and found in _THIS))


def permitted_addresses(host: str, port: int, loopback: bool) -> list[str]:
    """Return the addresses of a host that the server may connect to, at most `_MOST`. Raises OSError; AddressRefused if
    there are none."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise OSError("invalid host name") from None
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    permitted = [address for address in addresses if is_permitted(address, loopback)]
    if not permitted:
        raise AddressRefused(f"the server does not connect to the address {addresses[0]}: addresses of this kind "
                             "are blocked")
    return permitted[:_MOST]


def connect(host: str, port: int, timeout: float, loopback: bool) -> socket.socket:
    """Connect to a host, and return the socket. Each address is tried for `timeout` seconds. Raises OSError."""
    addresses = permitted_addresses(host, port, loopback)
    for address in addresses[:-1]:
        try:
            return socket.create_connection((address, port), timeout)
        except OSError:
            continue
    return socket.create_connection((addresses[-1], port), timeout)


#: Prefixes of the variables in which libraries of clouds look for credentials if a connection has none.
_AMBIENT = ("AWS_", "AZURE_", "GOOGLE_", "CLOUDSDK_")


def guard(loopback: bool) -> None:
    """Restrict this process until it ends: its Python code cannot connect to an address that is not permitted, and
    finds no credentials of the server in its environment.

    This is for processes that let libraries connect: libraries resolve names again, and follow redirects to other
    servers.
    """
    for name in [name for name in os.environ if name.startswith(_AMBIENT)]:
        del os.environ[name]

    _connect_to_checked(loopback)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "socket.connect":
            _check(arguments[0].family, arguments[1], loopback)

    sys.addaudithook(hook)


def _connect_to_checked(loopback: bool) -> None:
    """Let the sockets of this process resolve a name once, and connect to the address that was checked."""
    for name in ("connect", "connect_ex"):
        plain = getattr(socket.socket, name)

        def pinned(self: socket.socket, address: Any, plain: Any = plain) -> Any:
            if self.family not in (socket.AF_INET, socket.AF_INET6) or _is_address(address[0]):
                return plain(self, address)
            found = socket.getaddrinfo(address[0], address[1], self.family, socket.SOCK_STREAM)
            for entry in found:
                _check(self.family, entry[4], loopback)
            return plain(self, (found[0][4][0], *address[1:]))

        setattr(socket.socket, name, pinned)


def _is_address(host: Any) -> bool:
    try:
        ipaddress.ip_address(str(host).partition("%")[0])
    except ValueError:
        return False
    return True


def _check(family: int, address: Any, loopback: bool) -> None:
    if family == socket.AF_UNIX:
        if not loopback:
            raise AddressRefused("the server does not connect to Unix sockets of its own machine")
    # A name would be resolved again after this check.
    elif family in (socket.AF_INET, socket.AF_INET6) and not (
        _is_address(address[0]) and is_permitted(str(address[0]), loopback)
    ):
        raise AddressRefused(f"the server does not connect to the address {address[0]}: addresses of this kind are "
                             "blocked")
