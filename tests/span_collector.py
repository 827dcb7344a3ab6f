"""A collector of OpenTelemetry spans."""

from __future__ import annotations

import gzip
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from support import PATIENCE


class Collector:
    """An HTTP collector that accepts spans, or holds back its responses."""

    def __init__(self) -> None:
        self.bodies: queue.Queue[bytes] = queue.Queue()
        self.answers = threading.Event()
        self.answers.set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.bodies.put(body)
                collector.answers.wait()
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def spans(self) -> list[Any]:
        """Return the spans of the next delivery."""
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        found = ExportTraceServiceRequest.FromString(self.bodies.get(timeout=PATIENCE))
        self.resource = {item.key: item.value.string_value for item in found.resource_spans[0].resource.attributes}
        return [span for resource in found.resource_spans for scope in resource.scope_spans for span in scope.spans]
