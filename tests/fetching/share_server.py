"""A server of the REST interface of Azure Files, with one account and one share."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

ACCOUNT, KEY, SHARE = "someone", "a2V5", "models"


@dataclass
class Account:
    """The files of the share by path, and the faults of the server."""

    files: dict[str, bytes] = field(default_factory=dict)
    #: Status of every answer, 0 for the right one.
    status: int = 0
    #: Called with the path before each read of a file.
    reading: Callable[[str], None] = lambda path: None
    url: str = ""

    @property
    def values(self) -> dict[str, str]:
        """Return the values of a connection to the account."""
        return {"account_name": ACCOUNT, "account_key": KEY, "account_host": self.url}

    def entries(self, folder: str) -> tuple[set[str], set[str]]:
        """Return the names of the folders and of the files in a folder."""
        below = [path[len(folder):].lstrip("/") for path in self.files if not folder or path.startswith(f"{folder}/")]
        return {name.partition("/")[0] for name in below if "/" in name}, {name for name in below if "/" not in name}


def _handler(account: Account) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

        def do_GET(self) -> None:
            address = urlsplit(self.path)
            query, (share, _, path) = parse_qs(address.query), unquote(address.path).lstrip("/").partition("/")
            signed = self.headers.get("Authorization", "").startswith(f"SharedKey {ACCOUNT}:") or "sig" in query
            if account.status or not signed:
                return self.answer(account.status or 403, code="" if account.status else "AuthenticationFailed")
            if not share:
                return self.answer(200, f"<Shares>{_entry('Share', SHARE)}</Shares>")
            if share != SHARE:
                return self.answer(404)
            if "comp" in query:
                folders, files = account.entries(path)
                inner = [_entry("Directory", name) for name in folders] + [_entry("File", name) for name in files]
                if not inner and path:
                    return self.answer(404)
                return self.answer(200, f"<Entries>{''.join(inner)}</Entries>")
            if "restype" in query:
                return self.answer(200)
            self.file(path)

        do_HEAD = do_GET

        def file(self, path: str) -> None:
            if self.command == "GET":
                account.reading(path)
            if path not in account.files:
                return self.answer(404)
            data = account.files[path]
            start, end = 0, len(data)
            wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("x-ms-range", ""))
            if wanted:
                start, end = int(wanted[1]), min(int(wanted[2]) + 1, end)
            self.send_response(206 if wanted else 200)
            if wanted:
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
            self.send_header("ETag", f'"{hashlib.md5(data).hexdigest()}"')
            self.send_header("Content-Length", str(end - start))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data[start:end])

        def answer(self, status: int, inner: str = "", code: str = "") -> None:
            body = f"<EnumerationResults>{inner}<NextMarker/></EnumerationResults>".encode() if inner else b""
            self.send_response(status)
            self.send_header("Content-Type", "application/xml")
            if code:
                self.send_header("x-ms-error-code", code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler


def _entry(tag: str, name: str) -> str:
    return f"<{tag}><Name>{escape(name)}</Name><Properties/></{tag}>"


@contextmanager
def serving(account: Account) -> Iterator[Account]:
    """Serve the account on loopback."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(account))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    account.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield account
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
