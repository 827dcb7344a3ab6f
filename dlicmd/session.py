"""What every command gets: the parsed command line, the form of the output, and the client to ask."""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import TracebackType

from dlicmd import auth
from dlicmd.client import Client, open_transport
from dlicmd.console import warn
from dlicmd.contract.argv import CommandLine
from dlicmd.errors import UsageProblem
from dlicmd.render import Output


class Session:
    """One run of dlicmd."""

    def __init__(self, words: Sequence[str], line: CommandLine, output: Output) -> None:
        self.words, self.line, self.output = words, line, output
        self._client: Client | None = None

    @property
    def operand(self) -> str:
        """The value of the command, such as the id of an exec."""
        return self.line.operand or ""

    @property
    def client(self) -> Client:
        """The client for the server that the command line names, with its token; for the local backend without one."""
        if self._client is None:
            self._client = self.connect(with_token=True)
        return self._client

    def connect(self, with_token: bool) -> Client:
        """A new client; without a token for logging on."""
        line, host = self.line, self.line.text("--rest-host")
        if host is None:
            for option in ("--rest-port", "--ca-cert", "--insecure", "--http"):
                if option in line.values:
                    raise UsageProblem(f"{option} needs a server: --rest-host HOST")
            return Client()
        http = line.flag("--http")
        transport = open_transport(
            host, line.number("--rest-port"), http=http,
            ca_cert=line.text("--ca-cert") or os.environ.get("DLICMD_CA_CERT"),
            insecure=line.flag("--insecure") or os.environ.get("DLICMD_INSECURE", "").lower() in ("1", "true", "yes"),
        )
        if http and not transport.is_private:
            warn(f"--http: everything, your token too, travels to {host} unencrypted")
        return Client(token=auth.find_token(line.text("--jwt-token")) if with_token else None, transport=transport)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give back the connection."""
        if self._client is not None:
            self._client.close()
