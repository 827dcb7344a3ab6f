"""The servers that the user logged on to with `login`, and the one that verbs use.

A file beside the profiles, mode 0600, holds both, with a token for each server. Long options take the token and the
trust of the server that they name from this file, but never the server: scripts with them must not change their server
because the user logs on elsewhere.
"""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from dlicmd.cli.config.private_file import read_private, write_private
from dlicmd.contract.argv import CommandLine
from dlicmd.contract.options import NO_PROFILE, PROFILE
from dlicmd.sdk import paths
from dlicmd.sdk.calls import server_url
from dlicmd.sdk.errors import TokenFileError, UsageProblem
from dlicmd.sdk.messages import inert

#: The name of the local backend among servers.
LOCAL = "local"
HOST, PORT = "--rest-host", "--rest-port"
#: Connection options that are stored with a server, beside host and port.
_TRUST = ("--ca-cert", "--trust-fingerprint")
_KEPT = (*_TRUST, "--insecure", "--http", "--keyring")
#: Verbs that use the server of their own words alone.
_WITHOUT = ("--demo", "--logon", "--server")
_WHAT, _LARGEST = "file of servers", 2**20
_CURRENT, _SERVERS, _USER, _OPTIONS, _TOKEN = "current", "servers", "user", "options", "token"


class KnownServer(NamedTuple):
    """A server: its connection options with their values, the user, and the token unless a keyring has it."""

    name: str
    options: dict[str, Any]
    user: str = ""
    token: str | None = None

    @property
    def in_keyring(self) -> bool:
        """Whether the token is in the system's keyring."""
        return self.options.get("--keyring") is True

    @property
    def address(self) -> str:
        """The scheme, host and port, as `address_of` returns them; "" for an unusable entry."""
        try:
            return address_of(self.options[HOST], self.options.get(PORT), self.options.get("--http") is True)
        except UsageProblem:
            return ""

    @property
    def trust(self) -> dict[str, str]:
        """The options that say how the certificate of the server is verified."""
        return {name: self.options[name] for name in _TRUST if name in self.options}


class Servers(NamedTuple):
    """The known servers by name, and the name of the current one."""

    known: dict[str, KnownServer]
    current: str = LOCAL

    def at(self, address: str) -> KnownServer | None:
        """Return the known server at an address of `address_of`, or None."""
        return next((one for one in self.known.values() if one.address == address), None)

    def check(self, name: str) -> None:
        """Raise UsageProblem unless `name` is the local backend or a known server."""
        names = [LOCAL, *self.known]
        if name not in names:
            raise UsageProblem(f"you are not logged on to '{inert(name)}', only to {', '.join(map(inert, names))}; log "
                               f"on: dlicmd login {inert(name)}")

    def without(self, address: str) -> Servers:
        """Return these servers without the one at an address."""
        known = {name: one for name, one in self.known.items() if one.address != address}
        return Servers(known, self.current if self.current in known else LOCAL)


def load() -> Servers:
    """Return the known servers. Raises TokenFileError when the file cannot be used."""
    path = paths.servers_file()
    content = read_private(path, _WHAT, _LARGEST) if os.path.lexists(path) else None
    if not content:
        return Servers({})
    try:
        found = json.loads(content)
        known = {name: KnownServer(str(name), _checked(entry[_OPTIONS]), str(entry[_USER]), _token(entry))
                 for name, entry in found[_SERVERS].items()}
        current = found[_CURRENT]
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        raise TokenFileError(f"the {_WHAT} {path} is damaged; remove it and log on again") from None
    return Servers(known, current if current in known else LOCAL)


def _checked(options: Any) -> dict[str, Any]:
    """Return stored options. Raises ValueError for other options, and for values of another kind."""
    for name, value in options.items():
        kind = str if name in (HOST, *_TRUST) else int if name == PORT else bool
        if name not in (HOST, PORT, *_KEPT) or not isinstance(value, kind):
            raise ValueError(name)
    return {HOST: options[HOST], **options}


def _token(entry: dict[str, Any]) -> str | None:
    token = entry.get(_TOKEN)
    return token if isinstance(token, str) and token else None


def save(servers: Servers) -> None:
    """Store the known servers. Raises TokenFileError."""
    known = {one.name: {_OPTIONS: one.options, _USER: one.user, _TOKEN: one.token} for one in servers.known.values()}
    content = json.dumps({_CURRENT: servers.current, _SERVERS: known}, indent=2)
    write_private(paths.servers_file(), _WHAT, content.encode("ascii"))


def address_of(host: str, port: int | None, http: bool) -> str:
    """Return scheme, host and port of a server, the same for each way to write them. Raises UsageProblem."""
    parts = urlsplit(server_url(host, port, http))
    return f"{parts.scheme}://{parts.hostname}:{parts.port or (80 if http else 443)}"


def name_of(line: CommandLine) -> str:
    """Return the name of the server that a command line uses: `local`, HOST, or HOST:PORT."""
    host, port = line.text(HOST), line.number(PORT)
    if host is None:
        return LOCAL
    return host if port is None or port < 0 else f"{host}:{port}"


def options_of(line: CommandLine) -> dict[str, Any]:
    """Return the connection options of a command line that are stored with its server."""
    found = {name: line.values[name] for name in (HOST, PORT, *_KEPT) if name in line.values}
    if "--ca-cert" in found:
        found["--ca-cert"] = os.path.abspath(str(found["--ca-cert"]))
    return found


def use_current(line: CommandLine) -> None:
    """Let the command line of a verb use the current server, unless it or its profile names a server. The operand of
    `logout` is the name of a server. Raises UsageProblem, TokenFileError."""
    named = line.operand if line.command == "--logoff" else None
    if named is not None and HOST in line.values:
        raise UsageProblem(f"give the server once: dlicmd logout {inert(named)}, or {HOST}")
    if line.command in _WITHOUT or HOST in line.values:
        return
    if named is None and line.text(PROFILE.name) == NO_PROFILE:
        return
    servers = load()
    if named is not None:
        servers.check(named)
    name = servers.current if named is None else named
    if name != LOCAL:
        fill(line, servers.known[name])


def fill(line: CommandLine, server: KnownServer) -> None:
    """Give a command line the connection options of a known server, except those that it has. Trust that it has
    replaces all stored trust."""
    own = set(line.values)
    taken = own if own.isdisjoint(_TRUST) else own.union(_TRUST)
    line.values.update({name: value for name, value in server.options.items() if name not in taken})


def remember(server: KnownServer, is_current: bool) -> None:
    """Store a server with its token, in place of another one at its address. Raises TokenFileError."""
    found = load()
    others = found.without(server.address).known
    is_current = is_current or found.current not in (LOCAL, *others)
    save(Servers({**others, server.name: server}, server.name if is_current else found.current))
