"""The server of a command line of `dlim`: `--rest-server URL` as the options of dlicmd."""

from __future__ import annotations

from urllib.parse import urlsplit

from dlicmd.contract import dlim
from dlicmd.contract.argv import CommandLine, convert
from dlicmd.contract.dlim_commands import SERVER
from dlicmd.contract.options import BY_NAME
from dlicmd.sdk.errors import UsageProblem
from dlicmd.sdk.messages import inert

HOST, PORT, HTTP = "--rest-host", "--rest-port", "--http"


def use_server(line: CommandLine) -> None:
    """Set the connection options from `--rest-server`, if it is given. Raises UsageProblem, ArgvError."""
    url = line.text(SERVER.name)
    if url is None:
        return
    if HOST in line.values:
        raise UsageProblem(f"give the server once: {SERVER.name}, or {HOST}")
    take(line, url, SERVER.name)


def take(line: CommandLine, url: str, option: str) -> None:
    """Set the connection options from a URL such as `https://HOST:PORT/dlim/v1/`, or HOST:PORT. Raises UsageProblem,
    ArgvError; `option` names the option in messages."""
    text = url if "://" in url else f"https://{url}"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
        parts = urlsplit("")
    if host is None or parts.scheme not in ("http", "https") or parts.username is not None:
        raise UsageProblem(f"{option}: '{inert(url)}' is not a URL such as https://HOST:PORT{dlim.BASE}/")
    if parts.path.rstrip("/") not in ("", dlim.BASE) or parts.query or parts.fragment:
        raise UsageProblem(f"{option}: the path of '{inert(url)}' is not {dlim.BASE}/")
    line.values[HOST] = f"[{host}]" if ":" in host else host
    line.values.pop(PORT, None)
    if port is not None:
        line.values[PORT] = convert(BY_NAME[PORT], str(port))
    if parts.scheme == "http":
        line.values[HTTP] = True
