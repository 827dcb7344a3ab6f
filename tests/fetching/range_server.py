"""A web server with ranges and ETags, and with the typical faults of servers."""

from __future__ import annotations

import hashlib
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_PIECE = 1 << 16


@dataclass
class Site:
    """The served files, and the faults. A file is bytes, or an object with a length that computes a range."""

    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    versions: bool = True
    #: Each answer takes one number from the list and breaks off after that many bytes of its body.
    cuts: list[int] = field(default_factory=list)
    #: Called before the answer to every request for more than the first byte.
    before: Callable[[str], None] = lambda path: None
    #: Called before the answer to every request for only the first byte.
    question: Callable[[str], None] = lambda path: None
    #: Called before each piece of a body is read, with its offset. If the call replaces the file, later pieces come
    #: from the new file, as with a file that is overwritten in place.
    reading: Callable[[str, int], None] = lambda path, at: None
    #: Path → Last-Modified.
    dates: dict[str, str] = field(default_factory=dict)
    authorization: str = ""
    status: int = 0
    #: Path → the address to which requests for it are redirected.
    moved: dict[str, str] = field(default_factory=dict)
    #: The Authorization header of each request.
    shown: list[str | None] = field(default_factory=list)
    #: Sent bytes of bodies by path, without requests for only the first byte.
    sent: Counter[str] = field(default_factory=Counter)
    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def etag(self, path: str) -> str:
        """Return the ETag of the present content."""
        return f'"{hashlib.md5(self.files[path]).hexdigest()}"'


def _handler(site: Site) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

        def do_GET(self) -> None:
            wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            question = wanted is not None and wanted[2] == "0"
            (site.question if question else site.before)(self.path)
            data = site.files.get(self.path)
            site.shown.append(self.headers.get("Authorization"))
            if self.path in site.moved:
                return self.empty(302, ("Location", site.moved[self.path]))
            if site.authorization and self.headers.get("Authorization") != site.authorization:
                return self.empty(401)
            if site.status or data is None:
                return self.empty(site.status or 404)
            start, end = 0, len(data)
            if wanted is None or not site.ranges:
                self.send_response(200)
            elif int(wanted[1]) >= len(data):
                return self.empty(416, ("Content-Range", f"bytes */{len(data)}"))
            else:
                start, end = int(wanted[1]), min(int(wanted[2] or len(data)) + 1, len(data))
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
            if site.versions:
                self.send_header("ETag", site.etag(self.path))
            if self.path in site.dates:
                self.send_header("Last-Modified", site.dates[self.path])
            self.send_header("Content-Length", str(end - start))
            self.end_headers()
            self.body(start, end, question)

        def body(self, start: int, end: int, question: bool) -> None:
            with site.lock:
                cut = site.cuts.pop(0) if site.cuts and not question else None
            stop = end if cut is None else min(end, start + cut)
            with suppress(OSError):
                for at in range(start, stop, _PIECE):
                    if not question:
                        site.reading(self.path, at)
                    piece = site.files[self.path][at:min(at + _PIECE, stop)]
                    if not question:  # count before sending: a client that has all bytes may check at once
                        with site.lock:
                            site.sent[self.path] += len(piece)
                    self.wfile.write(piece)
            if stop < end:
                self.close_connection = True

        def empty(self, status: int, *headers: tuple[str, str]) -> None:
            self.send_response(status)
            for name, value in (*headers, ("Content-Length", "0")):
                self.send_header(name, value)
            self.end_headers()

    return Handler


@contextmanager
def serving(site: Site) -> Iterator[Site]:
    """Serve the site on loopback."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(site))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    site.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
