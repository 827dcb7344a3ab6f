"""Connections to addresses that users name. The server makes them, so it does not make all.

Refused are link-local addresses (where clouds hand out credentials to whoever asks from the machine), those that stand
for no single machine, and on a server for several users its own loopback. Names are resolved once, and it is the
address that was looked at that is connected to: a name that answers differently a moment later gains nothing.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from typing import Any

#: Of the addresses of one name that many are tried.
_MOST = 4
#: An IPv4 address is in the last four bytes of these: a translator on the way leads to it.
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")
#: Where clouds answer about the machine, besides the link-local addresses.
_METADATA = frozenset({ipaddress.ip_address("fd00:ec2::254"), ipaddress.ip_address("100.100.100.200")})


class AddressRefused(OSError):
    """The server connects to no such address."""


def is_permitted(address: str, loopback: bool) -> bool:
    """Whether the server connects to an address; `loopback` says whether it does to its own machine's."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        within = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF) if found in _TRANSLATED else None
        found = found.ipv4_mapped or found.sixtofour or within or found
    if found.is_loopback:
        return loopback
    return not (found.is_link_local or found.is_multicast or found.is_unspecified or found.is_reserved
                or found in _METADATA)


def permitted_addresses(host: str, port: int, loopback: bool) -> list[str]:
    """The addresses of a host that may be connected to. Raises OSError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise OSError("it is no name of a host") from None
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    permitted = [address for address in addresses if is_permitted(address, loopback)]
    if not permitted:
        raise AddressRefused(f"the server connects to no such address as {addresses[0]}")
    return permitted[:_MOST]


def connect(host: str, port: int, timeout: float, loopback: bool) -> socket.socket:
    """A connection to a host, each address tried for `timeout` seconds. Raises OSError."""
    addresses = permitted_addresses(host, port, loopback)
    for address in addresses[:-1]:
        try:
            return socket.create_connection((address, port), timeout)
        except OSError:
            continue
    return socket.create_connection((addresses[-1], port), timeout)


#: Libraries of clouds look for credentials in variables with these beginnings when a connection has none.
_AMBIENT = ("AWS_", "AZURE_", "GOOGLE_", "CLOUDSDK_")


def guard(loopback: bool) -> None:
    """From now on, and for good, no Python code of this process connects to an address that is not permitted, nor finds
    credentials of the server's own in its environment.

    For a process that leaves connecting to libraries: names that they look up again, servers that they are sent on to.
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
            raise AddressRefused("the server connects to no socket of its own machine")
    elif family in (socket.AF_INET, socket.AF_INET6):
        for found in socket.getaddrinfo(address[0], address[1], family, socket.SOCK_STREAM):
            if not is_permitted(str(found[4][0]), loopback):
                raise AddressRefused(f"the server connects to no such address as {found[4][0]}")
