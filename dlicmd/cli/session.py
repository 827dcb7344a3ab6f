"""The session of a command: the parsed command line, the output format, and the client."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote_plus

from dlicmd.cli import auth
from dlicmd.cli.config import profiles
from dlicmd.cli.manner import Manner, of_this_process
from dlicmd.cli.render import Output
from dlicmd.contract import wire
from dlicmd.contract.argv import CommandLine
from dlicmd.sdk import backend
from dlicmd.sdk.calls import Closing, open_transport, server_url
from dlicmd.sdk.client import Client
from dlicmd.sdk.errors import DlicmdError, UsageProblem
from dlicmd.sdk.messages import inert, info, warn
from dlicmd.sdk.transport import Transport, lacks_tls

if TYPE_CHECKING:
    from dlicmd.cli.config.servers import KnownServer

QUERY = "--query-args"
#: The variable that Kubernetes sets in each pod, and the port of servers that the original client assumes there.
_POD, _POD_PORT = "KUBERNETES_SERVICE_HOST", 9243


class Place(NamedTuple):
    """Host, port and scheme of a remote server."""

    host: str
    port: int | None
    http: bool


class Session(Closing):
    """One run of dlicmd."""

    def __init__(
        self, words: Sequence[str], line: CommandLine, output: Output, client: Client | None = None,
    ) -> None:
        self.words, self.line, self.output = words, line, output
        #: The exec that was submitted or waited for, in its last known state.
        self.watched: dict[str, Any] = {}
        #: Returns another token for the session in place of one that its server denies, or None.
        self.renewal: Callable[[Session, str], str | None] | None = None
        self._client = client
        self._place: Place | None = None

    @property
    def operand(self) -> str:
        """The value of the command, such as the id of an exec."""
        return self.line.operand or ""

    @property
    def operands(self) -> list[str]:
        """All values of the command."""
        return self.line.operands

    @property
    def keyring(self) -> bool:
        """Whether the token is stored in the system's keyring."""
        return self._is_on("--keyring")

    def _is_on(self, flag: str) -> bool:
        """Return whether a flag is given, or its variable is set."""
        return self.line.flag(flag) or profiles.is_yes(os.environ.get(profiles.ENVIRONMENT[flag], ""))

    @property
    def server_name(self) -> str:
        """The name of the server for messages: `local` or HOST:PORT."""
        from dlicmd.cli.config.servers import name_of  # few commands name the server

        return name_of(self.line)

    @property
    def client(self) -> Client:
        """The client for the server that the command line names, with its token; without a token for the local
        backend."""
        if self._client is None:
            self._client = self.connect(with_token=True)
            if self.place is not None and self.renewal is not None:
                self._client.renewal = partial(self.renewal, self)
        return self._client

    def connect(self, with_token: bool) -> Client:
        """Return a new client; for a logon, without a token."""
        line, timeout = self.line, self.line.number("--call-timeout")
        place = self.place
        if place is None:
            for option in ("--rest-port", "--ca-cert", "--trust-fingerprint", "--insecure", "--http"):
                if option in line.values:
                    raise UsageProblem(f"{option} needs a server: --rest-host HOST")
            if line.flag("--dry-run"):
                return Client(transport=backend.EmbeddedTransport(may_start=False), retries=0, timeout=timeout)
            return Client(timeout=timeout)
        transport = self._transport(place)
        if place.http and not transport.is_private:
            warn(f"--http: all data, including your token, is sent to {place.host} unencrypted")
        token = self.token() if with_token else None
        return Client(token=token, transport=transport, timeout=timeout)  # its few requests go through the server

    @property
    def place(self) -> Place | None:
        """Where the remote server of the command line is, and its scheme; None for the local backend. Raises
        UsageProblem."""
        host = self.line.text("--rest-host")
        if self._place is None and host is not None:
            port = self.line.number("--rest-port")
            if port is None and of_this_process() is Manner.ORIGINAL and _POD in os.environ:
                port = _POD_PORT
            http = self.line.flag("--http") or backend.is_own(f"{host}:{port}")
            if not (http or self._given_trust() or self._is_on("--insecure")) and _is_plain_on_loopback(host, port):
                info(f"{host}:{port} is on this machine and does not use TLS: using plain http")
                http = True
            self._place = Place(host, port, http)
        return self._place

    def forget_place(self) -> None:
        """Look for the server in the command line again, whose connection options have changed."""
        self._place = None

    @property
    def address(self) -> str:
        """Scheme, host and port of the remote server; "" for the local backend. Raises UsageProblem."""
        from dlicmd.cli.config.servers import address_of  # only for remote servers

        return address_of(*self.place) if self.place else ""

    @property
    def known_server(self) -> KnownServer | None:
        """The stored server at this address, or None. Raises TokenFileError, UsageProblem."""
        from dlicmd.cli.config import servers  # only for remote servers

        return servers.load().at(self.address)

    @property
    def trust(self) -> dict[str, str]:
        """The options that say how the certificate of the remote server is verified: of this command, otherwise those
        stored at the logon. Raises TokenFileError, UsageProblem."""
        given = self._given_trust()
        if given or self._is_on("--insecure") or of_this_process() is Manner.ORIGINAL:
            return given
        known = self.known_server
        return known.trust if known is not None else {}

    def _given_trust(self) -> dict[str, str]:
        """Return the options of this command, or their variables, that say how the certificate is verified."""
        if fingerprint := self.line.text("--trust-fingerprint"):
            return {"--trust-fingerprint": fingerprint}
        authority = self.line.text("--ca-cert") or os.environ.get("DLICMD_CA_CERT")
        return {"--ca-cert": authority} if authority else {}

    def _transport(self, place: Place) -> Transport:
        as_original, trust = of_this_process() is Manner.ORIGINAL, {} if place.http else self.trust
        if "--trust-fingerprint" in trust:
            from dlicmd.cli.trust import TrustedTransport  # needs requests

            return TrustedTransport(server_url(*place), trust["--trust-fingerprint"])
        return open_transport(place.host, place.port, http=place.http, ca_cert=trust.get("--ca-cert"),
                              insecure=self._is_on("--insecure"), may_trust=auth.may_trust if as_original else None)

    def token(self) -> str:
        """Return the token for the server: the given one, or the one that this server issued. A stored token that
        another server issued is never sent. As the original client, prefer the token file. Raises Denied."""
        given = auth.given_token(self.line.text("--jwt-token"))
        if given is None and of_this_process() is Manner.ORIGINAL:
            given = auth.read_token(self.keyring)
        return given or auth.token_for(self.address, self.keyring)

    def need(self, extension: str, lack: str) -> None:
        """Raise DlicmdError when the server lacks an extension."""
        if extension not in self.client.extensions():
            raise DlicmdError(f"this server {lack} (it lacks the extension '{extension}')")

    def query(self, known: Sequence[str]) -> str | None:
        """Return the query of `--query-args` as typed. Warn about a key that is not in `known`, because servers may
        ignore it. Raises UsageProblem when `limit` is not a number. As the original client, do neither."""
        text = self.line.text(QUERY)
        if self.output.is_original:
            return text  # the server checks it
        for pair in (text or "").lstrip("?").split("&"):
            key, _, value = (unquote_plus(part) for part in pair.partition("="))
            if key and key not in known:
                import difflib  # only for a wrong key

                near = difflib.get_close_matches(key, known, n=1)
                meant = f"; did you mean {near[0]}?" if near else ""
                warn(f"{QUERY}: unknown key '{inert(key)}', which servers may ignore "
                     f"(known: {', '.join(known)}){meant}")
            if key == wire.LIMIT and not (value.isascii() and value.isdigit()):
                raise UsageProblem(f"{QUERY}: limit: '{inert(value)}' is not a whole number")
        return text

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()


def _is_plain_on_loopback(host: str, port: int | None) -> bool:
    """Return whether this is a server on the loopback without TLS, where nothing leaves the machine."""
    return host in backend.LOOPBACK and port is not None and port > 0 and lacks_tls(host, port)
