"""Storing the token of a logon, and another token in place of one that has expired."""

from __future__ import annotations

import os

from dlicmd.cli import auth
from dlicmd.cli.config import servers
from dlicmd.cli.config.servers import KnownServer
from dlicmd.cli.session import Session
from dlicmd.contract import wire
from dlicmd.sdk.errors import DlicmdError
from dlicmd.sdk.messages import inert, info


def renewed(session: Session, denied: str) -> str | None:
    """Return a token in place of a denied one: the token of a newer `login`, or that of a logon with the user name and
    password in the environment, if that user had logged on. Return None when there is none. A token that the command
    line or the environment gives has none in its place."""
    if auth.given_token(session.line.text("--jwt-token")) is not None:
        return None
    stored, known = session.token(), session.known_server
    if stored != denied or known is None:
        return stored
    username, password = os.environ.get("DLICMD_USERNAME"), os.environ.get("DLICMD_PASSWORD")
    if not password or username != known.user:
        return None
    client = session.connect(with_token=False)
    try:
        token = str(client.logon(username, password)[wire.ACCESS_TOKEN])
        keep(session, username, token, is_current=False)
    except DlicmdError:
        return None
    finally:
        client.close()
    info(f"the logon had expired: logged on again as {inert(username)}")
    return token


def keep(session: Session, username: str, token: str, is_current: bool) -> None:
    """Store the token of the session's server. Raises TokenFileError."""
    place = session.place
    assert place is not None
    known = session.known_server
    if known is not None:
        servers.fill(session.line, known)
    options = servers.options_of(session.line)
    if place.http:
        options["--http"] = True
    name = session.server_name
    if session.keyring:
        auth.write_token(token, True, name)
        options["--keyring"] = True
    servers.remember(KnownServer(name, options, username, None if session.keyring else token), is_current)
