"""A browser without scripts: it keeps the cookie of its session, and reads pages as a parser does."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from http.client import HTTPConnection, HTTPSConnection
from typing import Any
from urllib.parse import urlencode

from live_server import Answer, Live, route_table
from support import PATIENCE

from dlicmd.contract import wire
from local_backend.console import places

FORM = "application/x-www-form-urlencoded"
#: Headers with which a browser opens a page from a link on another site.
FROM_ANOTHER_SITE = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


class Page(HTMLParser):
    """The elements of a page: their names and attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def field(self, name: str) -> str:
        """Return the value of the first form field with a name."""
        return next(one["value"] for one in self.all("input") if one.get("name") == name)

    @property
    def files(self) -> list[str]:
        """The files of this server that a browser loads for the page."""
        links = [one["href"] for one in self.all("link")] + [one["src"] for one in self.all("script")]
        return list(dict.fromkeys([*links, *(one["src"] for one in self.all("img"))]))


@dataclass
class Visitor:
    """A browser, with its session if it has one."""

    live: Live
    session: str = ""
    #: For a server with TLS.
    trust: ssl.SSLContext | None = None
    _csrf: str = field(default="", repr=False)

    def call(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Answer:
        """Make one call, and keep the session that the answer sets."""
        host = "localhost" if self.trust else "127.0.0.1"
        connection = (HTTPSConnection(host, self.live.port, timeout=PATIENCE, context=self.trust) if self.trust
                      else HTTPConnection(host, self.live.port, timeout=PATIENCE))
        sent = {"Cookie": f"{wire_cookie()}={self.session}"} if self.session else {}
        try:
            connection.request(method, path, body or None, sent | (headers or {}))
            found = connection.getresponse()
            answer = Answer(found.status, {name.lower(): value for name, value in found.getheaders()}, found.read())
        finally:
            connection.close()
        if cookie := answer.headers.get("set-cookie", ""):
            self.session = re.fullmatch(rf'{wire_cookie()}="?([^;"]*)"?;.*', cookie)[1]  # type: ignore[index]
        return answer

    def get(self, path: str, **headers: str) -> Answer:
        return self.call("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})

    def post(self, path: str, values: dict[str, Any] | None = None, headers: dict[str, str] | None = None) -> Answer:
        """Send a form, with no CSRF token unless `values` or `headers` have one."""
        return self.call("POST", path, urlencode(values or {}).encode(), {"Content-Type": FORM} | (headers or {}))

    @property
    def csrf(self) -> str:
        """The CSRF token, as the pages of the session contain it."""
        if not self._csrf:
            self._csrf = Page(self.get(places.HOME).text).field("csrf")
        return self._csrf

    @contextmanager
    def stream(self, path: str) -> Iterator[Iterator[str]]:
        """Yield the lines of an answer that does not end. They end when the server ends the answer."""
        with closing(socket.create_connection(("127.0.0.1", self.live.port), PATIENCE)) as sock:
            sock.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.live.port}\r\nConnection: close\r\n"
                         f"Cookie: {wire_cookie()}={self.session}\r\n\r\n".encode())
            with sock.makefile(encoding="utf-8", newline="\n") as lines:
                yield (line.strip() for line in lines)


def wire_cookie() -> str:
    """Return the name of the cookie of a session."""
    from local_backend.api.guard import SESSION

    return SESSION


def link(live: Live, token: str | None = None) -> str:
    """Return the path and query of a new one-time link for the user of a token."""
    more = {} if token is None else {"token": token}
    answer = live.call("POST", wire.LINK, base="", **more)
    assert answer.status == 200, answer.text
    url = str(answer.json()["url"])
    assert url.startswith(f"http://127.0.0.1:{live.port}{places.ENTER}?code=")
    return "/" + url.split("/", 3)[3]


def entered(live: Live, token: str | None = None) -> Visitor:
    """Return a browser that is logged on as the user of a token."""
    visitor = Visitor(live)
    assert visitor.get(link(live, token)).status == 200
    return visitor


def page_routes(live: Live, run: str = "x") -> list[tuple[str, str]]:
    """Return method and path of every route of the console. `run` is the id in paths that name a run."""
    found = []
    for path, methods in route_table(live).items():
        if places.is_page(path):
            filled = re.sub(r"\{[^}]*\}", "x", re.sub(r"\{(run|exec_id)(:path)?\}", run, path))
            found += [(method, filled) for method in sorted(methods - {"HEAD"})]
    return sorted(found)
