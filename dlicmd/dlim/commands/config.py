"""`dlim config`: the server for later commands, the stored token, and the token that only sends requests."""

from __future__ import annotations

from dlicmd.cli import auth, question
from dlicmd.cli.commands.servers import reached
from dlicmd.cli.config import servers
from dlicmd.cli.config.servers import LOCAL, KnownServer, Servers
from dlicmd.cli.render import emit, emit_value
from dlicmd.cli.renewal import keep
from dlicmd.cli.session import Session
from dlicmd.contract import dlim
from dlicmd.contract.exits import Exit
from dlicmd.dlim.place import take
from dlicmd.sdk.errors import Denied, ServerError, UsageProblem
from dlicmd.sdk.messages import inert
from dlicmd.sdk.model_objects import ServiceTokens

_CONNECT, _STORE, _SERVICE = "--connect", "--user-token", "--service-token"
_USER, _PASSWORD, _KEY = "--username", "--password", "--apikey"


def config(session: Session) -> int:
    """Set the server, store a token, or print the service token, as the options say; without options, print the
    settings."""
    line = session.line
    if line.text(_PASSWORD) is not None and line.text(_KEY) is not None:
        raise UsageProblem("give -x PASSWORD or -k APIKEY, not both")
    if line.text(_CONNECT) is not None:
        _connect(session, line.text(_CONNECT) or "")
    tokens = None
    if line.flag(_STORE):
        tokens = _store(session)
    if line.flag(_SERVICE):
        _print_service_token(session, tokens)
    if line.text(_CONNECT) is None and not line.flag(_STORE) and not line.flag(_SERVICE):
        if line.text(_USER) is not None or line.text(_PASSWORD) is not None or line.text(_KEY) is not None:
            raise UsageProblem("-u, -x and -k need -t (store a token) or -s (print a service token)")
        _show(session)
    return Exit.DONE


def _connect(session: Session, url: str) -> None:
    """Make a server the current one. On a terminal, its certificate is shown if no known authority signed it."""
    found = servers.load()
    if url == LOCAL:
        servers.save(Servers(found.known))
    else:
        for name in ("--rest-host", "--rest-port", "--http", "--ca-cert", "--trust-fingerprint"):
            if name not in {given.option.name for given in session.line.given}:
                session.line.values.pop(name, None)
        take(session.line, url, "-c")
        session.forget_place()
        if question.is_answerable():
            _reach(session)
        known = session.known_server
        options = servers.options_of(session.line)
        if session.place is not None and session.place.http:
            options["--http"] = True
        servers.remember(KnownServer(session.server_name, {**(known.options if known else {}), **options},
                                     known.user if known else "", known.token if known else None), is_current=True)
    if not session.output.is_data:
        emit(f"The server is {inert(url)}")
    else:
        emit_value({"server": url}, session.output)


def _reach(session: Session) -> None:
    """Connect to the server, so that the user can trust its certificate. Raises Unreachable."""
    try:
        reached(session).close()
    except ServerError:
        return  # a server of inference alone has no configuration to return


def _store(session: Session) -> ServiceTokens | None:
    """Fetch a token of the user, and store it for the server."""
    if session.place is None:
        raise UsageProblem("the local backend needs no token; set a server with -c URL")
    username, tokens = _fetched(session)
    keep(session, username, tokens.user, is_current=True)
    if session.output.is_data:
        emit_value({"server": session.server_name, "user": username}, session.output)
    elif not session.line.flag(_SERVICE):
        emit(f"The token of {inert(username)} for {session.server_name} is stored")
    return tokens


def _print_service_token(session: Session, tokens: ServiceTokens | None) -> None:
    line = session.line
    if tokens is None:
        named = line.text(_USER) is not None or line.text(_KEY) is not None
        tokens = _fetched(session)[1] if named and session.place is not None else session.client.service_tokens()
    if session.output.is_data:
        emit_value({dlim.INFERENCE_TOKEN: tokens.service}, session.output)
    else:
        emit(tokens.service)


def _fetched(session: Session) -> tuple[str, ServiceTokens]:
    """Return the user and the tokens for the credentials of the command line. An API key may be an API token of the
    server, or stand for a password."""
    line, client = session.line, session.connect(with_token=False)
    key = line.text(_KEY)
    if key is None:
        username, password = auth.credentials(line.text(_USER), line.text(_PASSWORD))
        return username, client.service_tokens(username, password)
    client.use_token(key)
    try:
        tokens = client.service_tokens()
        return line.text(_USER) or str(client.whoami().get("username") or ""), tokens
    except Denied:
        named = line.text(_USER)
        if named is None:
            raise
        return named, session.connect(with_token=False).service_tokens(named, key)


def _show(session: Session) -> None:
    """Print the server, the user and whether a token is stored."""
    known = session.known_server if session.place is not None else None
    shown = {"server": session.server_name, "user": known.user if known else "",
             "token": "stored" if known is not None and auth.token_of(known) else "none"}
    if session.place is None:
        shown["token"] = "not needed"
    if session.output.is_data:
        emit_value(shown, session.output)
    else:
        emit("\n".join(f"{name + ':':<8}{inert(value) or '-'}" for name, value in shown.items()))
