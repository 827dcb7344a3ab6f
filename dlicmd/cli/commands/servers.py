"""The verbs about servers: `login`, `logout`, and `server` with the list and the choice of the current one."""

from __future__ import annotations

import contextlib
from typing import Any

from dlicmd.cli import auth
from dlicmd.cli.config import servers
from dlicmd.cli.config.servers import HOST, LOCAL, PORT, KnownServer, Servers
from dlicmd.cli.render import emit, emit_value, show_rows
from dlicmd.cli.session import Session
from dlicmd.contract import wire
from dlicmd.contract.argv import CommandLine, convert
from dlicmd.contract.exits import Exit
from dlicmd.contract.options import BY_NAME
from dlicmd.sdk.errors import Denied, DlicmdError, TokenFileError, UsageProblem
from dlicmd.sdk.messages import inert, info, warn

_COLUMNS = ("server", "user", "current")


def login(session: Session) -> int:
    """Log on to a server, store its token, and make it the current server. After a failure, all stored tokens
    remain."""
    line = session.line
    _take_address(line)
    client = session.connect(with_token=False)
    username, password = auth.credentials(line.text("--username"), line.text("--password"))
    try:
        answer = client.logon(username, password)
    except Denied as problem:
        said = str(problem).rstrip(".")
        raise Denied(f"{said}; stored tokens are unchanged", problem.status, problem.code, problem.body) from None
    name, token = session.server_name, str(answer[wire.ACCESS_TOKEN])
    auth.write_token(token, session.keyring)  # for the long options, as --logon does
    known, options = servers.load().known, servers.options_of(line)
    if session.keyring:
        auth.write_token(token, True, name)
        options["--keyring"] = True
    known[name] = KnownServer(name, options, username, None if session.keyring else token)
    servers.save(Servers(known, name))
    role = answer.get(wire.ROLE)
    if session.output.is_data:
        emit_value({"user": username, "role": role, "server": name}, session.output)
    else:
        emit(inert(f"logged on to {name} as {username}" + (f" ({role})" if isinstance(role, str) else "")))
        info(f"verbs now use {inert(name)}; to use the local backend again: dlicmd server use {LOCAL}")
    return Exit.DONE


def _take_address(line: CommandLine) -> None:
    """Give the options of the command line the address that its operand names; without one, that of the current
    server. Raises UsageProblem, ArgvError."""
    if line.operand is None:
        if HOST not in line.values:
            found = servers.load()
            if found.current == LOCAL:
                raise UsageProblem("the local backend needs no logon; name a server: dlicmd login HOST:PORT")
            line.values.update(found.known[found.current].options)
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
    if name == LOCAL:
        info("the local backend needs no logon; nothing was changed")
        return Exit.DONE
    found = servers.load()
    server = found.known.pop(name, None)
    stored = auth.read_token(session.keyring)
    of_others = {auth.token_of(one) for one in found.known.values()}
    token = auth.token_of(server) if server is not None else None
    if token is None and stored not in of_others:
        token = stored
    if server is not None:
        if server.in_keyring:
            auth.forget_token(True, name)
        servers.save(Servers(found.known, LOCAL if found.current == name else found.current))
    if token is not None and token == stored:
        auth.forget_token(session.keyring)
    if token is not None:
        _revoke(session, token)
    if session.output.is_data:
        emit_value({"server": name}, session.output)
    else:
        emit(inert(f"logged off from {name}"))
    return Exit.DONE


def _revoke(session: Session, token: str) -> None:
    """Revoke a token on the server. Raises DlicmdError; a token that the server denies is already invalid."""
    client = session.connect(with_token=False)
    client.use_token(token)
    try:
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
    names = [LOCAL, *found.known]
    if words[1] not in names:
        raise UsageProblem(f"you are not logged on to '{inert(words[1])}', only to {', '.join(map(inert, names))}; log "
                           f"on: dlicmd login {inert(words[1])}")
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
