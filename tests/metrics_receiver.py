"""An HTTP server that receives metrics and can be told to misbehave."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver:
    """A server that records what it receives.

    The server uses up the list `answers` first, one entry per request: a status, `silent` (no answer until the test
    ends), `garbage`, `cut` (closes the connection), or a function that maps the body to a status. Then every answer
    is 200.
    """

    def __init__(self) -> None:
        self.answers: list[int | str | Callable[[Any], int]] = []
        #: The answer to every later request, if set.
        self.always: Callable[[Any], int] | None = None
        self.bodies: list[Any] = []
        self.headers: list[dict[str, str]] = []
        #: The items of all bodies that got a success status, in order of arrival.
        self.taken: list[dict[str, Any]] = []
        self.released = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/in"

    @property
    def metrics(self) -> list[dict[str, Any]]:
        return [item["metric"] for item in self.taken]

    def answer(self, body: Any) -> int | str:
        chosen = self.answers.pop(0) if self.answers else self.always or 200
        return chosen(body) if callable(chosen) else chosen

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                receiver.bodies.append(body)
                receiver.headers.append(dict(self.headers.items()))
                status = receiver.answer(body)
                if status == "silent":
                    receiver.released.wait()
                elif status == "garbage":
                    self.wfile.write(b"\x00\xff what? \r\n\r\n")
                elif isinstance(status, int):
                    if 200 <= status < 300:
                        receiver.taken += body["metrics"]
                    self.send_response(status)
                    self.send_header("Location", "http://127.0.0.1:9/elsewhere")
                    self.send_header("Content-Length", "0")
                    self.end_headers()

            def log_message(self, *_: Any) -> None:
                return

        return Handler


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()
    thread = threading.Thread(target=receiver.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.released.set()
        receiver.server.shutdown()
        receiver.server.server_close()
        thread.join()
