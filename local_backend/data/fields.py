"""The values of a connection, and what the address of a server may be."""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

from local_backend.data.errors import DataError

_LONGEST_HOST, _LONGEST_LABEL = 253, 63
#: A character other than letters, digits, hyphen and underscore. `_is_label` removes combining marks (vowel signs)
#: first.
_OTHER = re.compile(r"[^\w-]")


@dataclass(frozen=True)
class Field:
    """A value of a connection.

    Attributes:
        name: Name of the value, such as `url`.
        help: Meaning of the value in a few words, for users.
        required: Whether each connection needs the value.
        secret: Whether the value is a secret. The server never shows a secret.
        aliases: Other spellings of the name that clients use.
        schemes: For the address of a server: its permitted URL schemes, such as `("https",)`. Empty for other values.
        bare: For an address with `schemes`: whether a host alone is permitted, too.
        host: Whether the value is a host without scheme, port, user and path.
        socket: For a `host`: whether the value may be the folder of a Unix socket instead.
    """

    name: str
    help: str
    required: bool = False
    secret: bool = False
    aliases: tuple[str, ...] = ()
    schemes: tuple[str, ...] = ()
    bare: bool = False
    host: bool = False
    socket: bool = False


def check_address(item: Field, address: str, names: Collection[str]) -> None:
    """Raise DataError for an address that leads nowhere, or that contains a secret. `names` are the names of the fields
    of its kind."""
    if item.host:
        _check_host(item, address, "port" in names)
    elif item.schemes or "://" in address:
        _check_url(item, address, names)


def _is_host(text: str) -> bool:
    """Return whether a text is a host name or an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        labels = text.removesuffix(".").split(".")
        return len(text) <= _LONGEST_HOST and all(map(_is_label, labels))
    return True


def _is_label(text: str) -> bool:
    """Return whether a text is one part of a host name, in any script."""
    plain = "".join(character for character in text if not unicodedata.category(character).startswith("M"))
    return 0 < len(text) <= _LONGEST_LABEL and plain == plain.strip("-") != "" and _OTHER.search(plain) is None


def _check_host(item: Field, host: str, has_port: bool) -> None:
    if item.socket and host.startswith("/") and host.isprintable() and "," not in host:
        return
    if not _is_host(host):
        apart = "give the port as 'port', and leave out user" if has_port else "leave out port, user"
        raise DataError(f"'{item.name}' of the connection is not a host name, an IPv4 address or an IPv6 address; "
                        f"{apart}, password and path")


def _check_url(item: Field, address: str, names: Collection[str]) -> None:
    name, bare = item.name, item.bare and "://" not in address
    try:
        parts = urlsplit(f"https://{address}" if bare else address)
        _ = parts.port
        if any(ord(character) < 32 for character in address):  # urlsplit drops these
            raise ValueError
    except ValueError:
        raise DataError(f"'{name}' of the connection is not a valid address: its host or port is invalid") from None
    if item.schemes and not (parts.hostname and parts.scheme in item.schemes):
        either = " or ".join(f"{scheme}://HOST" for scheme in item.schemes)
        raise DataError(f"'{name}' of the connection is not a server address; write {either}")
    if parts.username is not None or parts.password is not None:
        apart = "give them as 'username' and 'password'" if {"username", "password"} <= {*names} else "leave them out"
        raise DataError(f"'{name}' of the connection contains a user or password, but users can see it; {apart}")
    if parts.query:
        apart = "give it as 'query'" if "query" in names else "leave it out"
        raise DataError(f"'{name}' of the connection contains a query ('?...'), but users can see it; {apart}")
    if item.schemes and not _is_host(parts.hostname or ""):
        raise DataError(f"'{name}' of the connection is not a server address: its host is invalid")
