"""The verbs about servers: `login`, `logout`, and `server` with the list and the choice of the current one."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from dlicmd.cli import auth, oidc, question
from dlicmd.cli.config import servers
from dlicmd.cli.config.servers import HOST, LOCAL, PORT, Servers
from dlicmd.cli.render import emit, emit_value, show_rows
from dlicmd.cli.renewal import keep
from dlicmd.cli.session import Session
from dlicmd.cli.trust import Certificate, offered
from dlicmd.contract import wire
from dlicmd.contract.argv import CommandLine, convert
from dlicmd.contract.exits import Exit
from dlicmd.contract.options import BY_NAME
from dlicmd.sdk.calls import server_url
from dlicmd.sdk.client import Client
from dlicmd.sdk.errors import Denied, DlicmdError, ServerError, TokenFileError, UsageProblem
from dlicmd.sdk.messages import inert, info, warn
from dlicmd.sdk.tls import Untrusted

_COLUMNS = ("server", "user", "current")


def login(session: Session) -> int:
    """Log on to a server, store its token, and make it the current server. The server is contacted, and its certificate
    verified, before the user types a password. After a failure, all stored tokens remain."""
    line = session.line
    _take_address(line)
    client = reached(session)
    try:
        if oidc.is_wanted(line):
            answer = oidc.logon(line, client)
            username = str(answer.get(wire.USERNAME))
        else:
            username, password = auth.credentials(line.text("--username"), line.text("--password"))
            answer = client.logon(username, password)
    except Denied as problem:
        said = str(problem).rstrip(".")
        raise Denied(f"{said}; stored tokens are unchanged", problem.status, problem.code, problem.body) from None
    role = answer.get(wire.ROLE)
    name = session.server_name
    keep(session, username, str(answer[wire.ACCESS_TOKEN]), is_current=True)
    if session.output.is_data:
        emit_value({"user": username, "role": role, "server": name}, session.output)
    else:
        emit(inert(f"logged on to {name} as {username}" + (f" ({role})" if isinstance(role, str) else "")))
        info(f"verbs now use {inert(name)}; to use the local backend again: dlicmd server use {LOCAL}")
    return Exit.DONE


def reached(session: Session) -> Client:
    """Return a client without a token for the session's server, which answers and whose certificate is verified. On a
    terminal, ask whether to trust a certificate that no known authority signed. Raises DlicmdError."""
    client = session.connect(with_token=False)
    try:
        _look(session, client)
    except Untrusted as problem:
        if session.trust:
            raise
        url = server_url(*session.place) if session.place else ""
        found = offered(url)
        if not _is_trusted(session.server_name, found):
            raise Untrusted(f"{problem}, or with --trust-fingerprint {found.fingerprint} if that is the fingerprint "
                            "that the server's administrator gave you") from None
        session.line.values["--trust-fingerprint"] = found.fingerprint
        client.close()
        client = session.connect(with_token=False)
        _look(session, client)
    return client


def _look(session: Session, client: Client) -> None:
    """Raise DlicmdError unless a server of the contract answers. No password and no token is sent."""
    try:
        client.conf()
    except Denied:
        return
    except ServerError as problem:
        if 300 <= problem.status < 400 or problem.status >= 500:
            raise
        raise ServerError(f"{inert(session.server_name)} answers, but not as a dlicmd or WMLA server (HTTP "
                          f"{problem.status}); check host and port. No password was sent", problem.status) from None


def _is_trusted(name: str, found: Certificate) -> bool:
    """Show a certificate on a terminal and ask whether to trust it; return False without a terminal."""
    if not question.is_answerable():
        return False
    role = "of the authority that signed it" if found.is_authority else "of the certificate"
    for text in (
        f"No known authority signed the TLS certificate of {name}:", f"  subject   {found.subject}",
        f"  issuer    {found.issuer}", f"  valid     {found.starts:%Y-%m-%d} to {found.ends:%Y-%m-%d}",
        f"  SHA-256   {found.fingerprint.removeprefix('SHA256:')}", f"            ({role})",
        "Compare the SHA-256 with the one that the server printed at its start.",
    ):
        print(inert(text), file=sys.stderr)
    return question.agreed("Trust it for this server?")


def _take_address(line: CommandLine) -> None:
    """Set the connection options of the command line from its operand, or from the current server without an operand.
    Raises UsageProblem, ArgvError."""
    if line.operand is None:
        if HOST not in line.values:
            found = servers.load()
            if found.current == LOCAL:
                raise UsageProblem("the local backend needs no logon; name a server: dlicmd login HOST:PORT")
            servers.fill(line, found.known[found.current])
        return
    if HOST in line.values:
        raise UsageProblem(f"give the server once: dlicmd login {line.operand}, or {HOST}")
    scheme, slashes, rest = line.operand.partition("://")
    if slashes and scheme not in ("http", "https"):
        raise UsageProblem(f"'{line.operand}' is not HOST or HOST:PORT")
    host, colon, port = (rest if slashes else line.operand).rstrip("/").rpartition(":")
    if not colon or port.endswith("]"):
        host, port = f"{host}{colon}{port}", ""
    line.values[HOST] = host
    if port:
        line.values[PORT] = convert(BY_NAME[PORT], port)
    if scheme == "http" and slashes:
        line.values["--http"] = True


def logout(session: Session) -> int:
    """Forget the token of the server that the verb uses, and revoke it there. The local backend becomes the current
    server if this one was."""
    name = session.server_name
    if session.place is None:
        info("the local backend needs no logon; nothing was changed")
        return Exit.DONE
    token = forget(session)
    if token is not None:
        _revoke(session, token)
    if session.output.is_data:
        emit_value({"server": name}, session.output)
    else:
        emit(inert(f"logged off from {name}"))
    return Exit.DONE


def forget(session: Session) -> str | None:
    """Forget the session's server and its token, and the token of the token file unless another server issued it.
    Return the removed token of this server, or None. This session still trusts the server. Raises TokenFileError."""
    found, keyring = servers.load(), session.keyring
    server, left = found.at(session.address), found.without(session.address)
    token = auth.token_of(server) if server is not None else None
    stored = auth.read_token(keyring)
    if server is not None:
        servers.fill(session.line, server)
        if server.in_keyring:
            auth.forget_token(True, server.name)
        servers.save(left)
    if stored is not None and (stored == token or (token is None and stored not in auth.tokens_of(left))):
        auth.forget_token(keyring)
        token = stored
    return token


def _revoke(session: Session, token: str) -> None:
    """Revoke a token on the server. Raises DlicmdError; a token that the server denies is already invalid."""
    try:
        client = session.connect(with_token=False)
        client.use_token(token)
        with contextlib.suppress(Denied):
            client.logoff()
    except DlicmdError:
        warn("removed the stored token, but could not revoke it: the server accepts it until it expires")
        raise


def server(session: Session) -> int:
    """List the servers (`ls`), or make one of them the current server (`use NAME`)."""
    words = session.operands or ["ls"]
    found = servers.load()
    if words == ["ls"]:
        rows: list[dict[str, Any]] = [{"server": LOCAL, "user": None, "current": found.current == LOCAL}]
        rows += [{"server": one.name, "user": one.user, "current": one.name == found.current}
                 for one in found.known.values()]
        show_rows(rows, session.output, _COLUMNS, _cell)
        return Exit.DONE
    if words[0] != "use" or len(words) != 2:
        raise UsageProblem(f"'{inert(' '.join(words))}' is neither ls nor use NAME")
    found.check(words[1])
    try:
        servers.save(Servers(found.known, words[1]))
    except TokenFileError:
        if words[1] != LOCAL or found.known:
            raise
    if session.output.is_data:
        emit_value({"server": words[1]}, session.output)
    else:
        emit(inert(f"verbs now use {words[1]}"))
    return Exit.DONE


def _cell(row: Any, column: str) -> str:
    value = row.get(column)
    return inert(value) if isinstance(value, str) else "*" if value else ""
