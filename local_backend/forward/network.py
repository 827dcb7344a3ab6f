"""Connections to addresses that users name. The server makes them, so it does not make all.

Refused are link-local addresses (where clouds hand out credentials to whoever asks from the machine), those that stand
for no single machine, and on a server for several users its own loopback. Names are resolved once, and it is the
address that was looked at that is connected to: a name that answers differently a moment later gains nothing.
"""

from __future__ import annotations

import ipaddress
import socket

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
        raise AddressRefused(f"the server sends no metrics to the address {addresses[0]}")
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
