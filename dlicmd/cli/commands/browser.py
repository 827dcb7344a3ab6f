"""`--console`: open the console in the browser, logged on."""

from __future__ import annotations

import html
import os
from pathlib import Path

from dlicmd.cli.commands.folder import desktop_opener, show_on_desktop
from dlicmd.cli.config.private_file import write_private
from dlicmd.cli.config.servers import LOCAL
from dlicmd.cli.render import emit, emit_value
from dlicmd.cli.session import Session
from dlicmd.contract.exits import Exit
from dlicmd.sdk.errors import ServerError
from dlicmd.sdk.messages import inert, info
from dlicmd.sdk.paths import link_file


def console(session: Session) -> int:
    """Make a one-time link. Open it, or print it where there is no desktop. Raises DlicmdError."""
    made = session.client.console_link()
    url = made.get("url")
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise ServerError("the server's answer contains no address of a console", 200)
    if session.output.is_data:
        emit_value(made, session.output)
        return Exit.DONE
    opener = None if session.line.flag("--no-browser") else desktop_opener()
    if opener is None:
        emit(inert(url))
        info(f"the address is valid once, within {made.get('seconds', 60)} s")
        if session.server_name == LOCAL and "SSH_CONNECTION" in os.environ:
            port = url.split("/")[2].rpartition(":")[2]
            info(f"from your own machine, forward the port first: ssh -L {port}:127.0.0.1:{port} HOST")
        return Exit.DONE
    show_on_desktop(opener, str(_page(url)))
    info(f"opened the console of {inert(session.server_name)}; if no page appears: dlicmd console --no-browser")
    return Exit.DONE


def _page(url: str) -> Path:
    """Return a file that leads to the address. Other users of this machine can see the words of a command, so the
    opener gets the file, which only its owner can read."""
    path = link_file()
    text = (f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={html.escape(url)}">'
            "<title>dlicmd</title>")
    write_private(path, "the page that opens the console", text.encode())
    return path
