"""The commands about the server and the client: version, logon, configuration, frameworks."""

from __future__ import annotations

import json
import sys

from dlicmd import __version__
from dlicmd.cli import auth, question
from dlicmd.cli.config.settings import show_settings
from dlicmd.cli.render import emit, emit_said, emit_value, scalar, show_columns
from dlicmd.cli.session import Session
from dlicmd.cli.show.table import terminal_width
from dlicmd.contract import wire
from dlicmd.contract.argv import parse_argv
from dlicmd.contract.exits import Exit
from dlicmd.sdk.errors import Denied, DlicmdError, UsageProblem
from dlicmd.sdk.messages import inert, info, warn
from dlicmd.sdk.objects import Framework


def version(session: Session) -> int:
    """Print the version."""
    if session.output.is_data:
        emit_value({"version": __version__}, session.output)
    else:
        emit(f"dlicmd {__version__}")
    return Exit.DONE


def logon(session: Session) -> int:
    """Log on, store the token, and print the server's answer."""
    if session.line.verb is not None:
        from dlicmd.cli.commands.servers import login  # only for a verb

        return login(session)
    if session.line.text("--rest-host") is None:
        raise UsageProblem("the local backend needs no logon; name a server with --rest-host HOST")
    from dlicmd.cli.commands.servers import forget, reached  # only for a logon
    from dlicmd.cli.renewal import keep

    asks = session.line.text("--password") is None and question.is_answerable() and not session.output.is_original
    client = reached(session) if asks else session.connect(with_token=False)
    username, password = auth.credentials(session.line.text("--username"), session.line.text("--password"))
    try:
        answer = client.logon(username, password)
    except Denied as problem:
        # A script that continues must not act as the user who was logged on before.
        auth.forget_token(session.keyring)
        forget(session)
        said = str(problem).rstrip(".")
        raise Denied(f"{said}; no token is stored now", problem.status, problem.code, problem.body) from None
    auth.write_token(answer[wire.ACCESS_TOKEN], session.keyring)
    keep(session, username, answer[wire.ACCESS_TOKEN], is_current=False)
    emit_value(answer if session.output.is_original else auth.masked(answer), session.output)
    return Exit.DONE


def logoff(session: Session) -> int:
    """Forget the stored token, and revoke it on the server."""
    if session.line.verb is not None:
        from dlicmd.cli.commands.servers import logout  # only for a verb

        return logout(session)
    # DLICMD_TOKEN takes precedence over the stored token. The logoff makes both invalid.
    tokens = dict.fromkeys(filter(None, (auth.token_in_environment(), _forgotten(session))))
    if session.line.text("--jwt-token") is not None or not tokens:
        info("there is no stored token to revoke")
        text = ""
    elif session.line.text("--rest-host") is None:
        info("removed the stored token; only with --rest-host HOST dlicmd also revokes it on the server")
        text = ""
    else:
        try:
            client = session.connect(with_token=False)
            for token in tokens:
                client.use_token(token)
                text = client.logoff().strip()
        except DlicmdError as problem:
            # A denied token is already invalid. The original client only prints the answer.
            if not isinstance(problem, Denied) and not session.output.is_original:
                warn("removed the stored token, but could not revoke it: the server accepts it until it expires")
            raise
    emit_said(text, session.output)
    return Exit.DONE


def _forgotten(session: Session) -> str | None:
    """Forget the stored token, in the original manner and without a server that of the token file. Return the token
    that the server of the session issued."""
    from dlicmd.cli.commands.servers import forget  # only for a logoff

    stored = auth.read_token(session.keyring)
    if session.place is not None:
        removed = forget(session)
        stored = removed if not session.output.is_original else stored or removed
    auth.forget_token(session.keyring)
    return stored


def whoami(session: Session) -> int:
    """Print the user, the role and the server."""
    found = session.client.whoami()
    shown = {"user": str(found.get("username")), "role": str(found.get(wire.ROLE) or ""),
             "server": session.server_name, "version": _version(session.client.status())}
    if session.output.is_data:
        emit_value(shown, session.output)
    else:
        role = f" ({shown['role']})" if shown["role"] else ""
        version = f", dlicmd {shown['version']}" if shown["version"] else ""
        emit(inert(f"{shown['user']}{role} on {shown['server']}{version}"))
    return Exit.DONE


def _version(status: str) -> str:
    """Return the version in a server's status, or an empty text."""
    try:
        found = json.loads(status)
    except (ValueError, RecursionError):
        return ""
    version = found.get("version") if isinstance(found, dict) else None
    return version if isinstance(version, str) else ""


def status(session: Session) -> int:
    """Print the server's status."""
    emit_said(session.client.status(), session.output)
    return Exit.DONE


def config_show(session: Session) -> int:
    """Print connection settings and defaults, with the source of each."""
    show_settings(parse_argv(session.words), session.output)
    return Exit.DONE


def frameworks(session: Session) -> int:
    """Print the frameworks for submissions."""
    found = session.client.frameworks()
    if session.output.is_data:
        emit_value(found, session.output)
    elif session.output.columns and not session.output.is_original:
        show_columns(found, session.output.columns, lambda item, name: scalar(item.get(name)))
    else:
        width = None if session.output.is_recorded or not sys.stdout.isatty() else terminal_width()
        blocks = [_framework_block(item, width) for item in found]
        if blocks:
            emit("\n".join(blocks) if session.output.is_recorded else "\n".join(blocks).rstrip("\n"))
    return Exit.DONE


def _framework_block(item: Framework, width: int | None) -> str:
    """Return the lines about a framework. On a terminal of `width` columns, long lines are wrapped."""
    said = item.get(wire.DESC)
    lines = [str(text) for text in said] if isinstance(said, list) else [str(said or "")]
    if width is not None:
        import textwrap  # only for a terminal

        lines = [part for line in lines for part in textwrap.wrap(
            line, width - 6, subsequent_indent="  ", break_on_hyphens=False) or [""]]
    block = f"Name: {item.get(wire.NAME, '')}\nVersion: {item.get(wire.FRAMEWORK_VERSION, '')}\n"
    return inert(block + "Desc: " + "\n      ".join(lines) + "\n")
