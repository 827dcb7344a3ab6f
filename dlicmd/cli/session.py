"""The session of a command: the parsed command line, the output format, and the client."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote_plus

from dlicmd.cli import auth
from dlicmd.cli.config import profiles
from dlicmd.cli.manner import Manner, of_this_process
from dlicmd.cli.render import Output
from dlicmd.contract import wire
from dlicmd.contract.argv import CommandLine
from dlicmd.sdk import backend
from dlicmd.sdk.calls import Closing, open_transport
from dlicmd.sdk.client import Client
from dlicmd.sdk.errors import DlicmdError, UsageProblem
from dlicmd.sdk.messages import inert, info, warn
from dlicmd.sdk.transport import lacks_tls

LOOPBACK = ("127.0.0.1", "localhost")
QUERY = "--query-args"
#: The variable that Kubernetes sets in each pod, and the port of servers that the original client assumes there.
_POD, _POD_PORT = "KUBERNETES_SERVICE_HOST", 9243


class Session(Closing):
    """One run of dlicmd."""

    def __init__(
        self, words: Sequence[str], line: CommandLine, output: Output, client: Client | None = None,
    ) -> None:
        self.words, self.line, self.output = words, line, output
        #: The exec that was submitted or waited for, in its last known state.
        self.watched: dict[str, Any] = {}
        self._client = client

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
        return self._client

    def connect(self, with_token: bool) -> Client:
        """Return a new client; for a logon, without a token."""
        line, host, timeout = self.line, self.line.text("--rest-host"), self.line.number("--call-timeout")
        if host is None:
            for option in ("--rest-port", "--ca-cert", "--insecure", "--http"):
                if option in line.values:
                    raise UsageProblem(f"{option} needs a server: --rest-host HOST")
            if line.flag("--dry-run"):
                return Client(transport=backend.EmbeddedTransport(may_start=False), retries=0, timeout=timeout)
            return Client(timeout=timeout)
        as_original = of_this_process() is Manner.ORIGINAL
        port = line.number("--rest-port")
        if port is None and as_original and _POD in os.environ:
            port = _POD_PORT
        ca_cert = line.text("--ca-cert") or os.environ.get("DLICMD_CA_CERT")
        insecure = self._is_on("--insecure")
        http = line.flag("--http") or _is_own_backend(host, port)
        if not (http or ca_cert or insecure) and _is_plain_on_loopback(host, port):
            info(f"{host}:{port} is on this machine and does not use TLS: using plain http")
            http = True
        transport = open_transport(host, port, http=http, ca_cert=ca_cert, insecure=insecure,
                                   may_trust=auth.may_trust if as_original else None)
        if http and not transport.is_private:
            warn(f"--http: all data, including your token, is sent to {host} unencrypted")
        token = self._token() if with_token else None
        return Client(token=token, transport=transport, timeout=timeout)

    def _token(self) -> str:
        """Return the token for the server. Each server of a verb has its own. Raises Denied."""
        of_server, of_others = None, frozenset[str]()
        if self.line.verb is not None:
            from dlicmd.cli.config import servers  # for a verb alone

            tokens = {one.name: auth.token_of(one) for one in servers.load().known.values()}
            of_server = tokens.pop(self.server_name, None)
            of_others = frozenset(filter(None, tokens.values()))
        return auth.find_token(self.line.text("--jwt-token"), self.keyring, of_server, of_others)

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
                import difflib  # for a wrong key alone

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
    return host in LOOPBACK and port is not None and port > 0 and lacks_tls(host, port)


def _is_own_backend(host: str, port: int | None) -> bool:
    """Return whether this address is that of this user's local backend, as scripts name servers.

    The backend's own file says that it speaks plain http on the loopback. Only this user can write that file: so this
    is no guess and no downgrade.
    """
    if host not in LOOPBACK:
        return False
    found = backend.find()
    return found is not None and found.url in {f"http://{name}:{port}" for name in LOOPBACK}
