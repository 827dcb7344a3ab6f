"""Connections to addresses that users name. The server makes these connections, so it refuses some addresses.

The server refuses link-local addresses, where clouds give credentials to every caller on the machine. It refuses
addresses that belong to no single machine. A server for several users also refuses its own loopback. A name is resolved
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
#: Addresses of this network contain an IPv4 address in the last 4 bytes; a translator forwards connections to it
#: (NAT64, RFC 6052).
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")
#: Metadata services of clouds, besides the link-local addresses.
_METADATA = frozenset({ipaddress.ip_address("fd00:ec2::254"), ipaddress.ip_address("100.100.100.200")})


class AddressRefused(OSError):
    """The server does not connect to this address."""


def is_permitted(address: str, loopback: bool) -> bool:
    """Return whether the server may connect to an address. `loopback` permits loopback addresses."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        within = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF) if found in _TRANSLATED else None
        found = found.ipv4_mapped or found.sixtofour or within or found
    if found.is_loopback:
        return loopback
    return not (found.is_link_local or found.is_multicast or found.is_unspecified or found.is_reserved
                or found in _METADATA)


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

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "socket.connect":
            _check(arguments[0].family, arguments[1], loopback)

    sys.addaudithook(hook)


def _check(family: int, address: Any, loopback: bool) -> None:
    if family == socket.AF_UNIX:
        if not loopback:
            raise AddressRefused("the server does not connect to Unix sockets of its own machine")
    elif family in (socket.AF_INET, socket.AF_INET6):
        for found in socket.getaddrinfo(address[0], address[1], family, socket.SOCK_STREAM):
            if not is_permitted(str(found[4][0]), loopback):
                raise AddressRefused(f"the server does not connect to the address {found[4][0]}: addresses of this "
                                     "kind are blocked")
