"""Spans of requests, for an OpenTelemetry collector that the environment names (OTEL_EXPORTER_OTLP_ENDPOINT).

Tracing needs the extra `otel`. Attributes have the names of OpenTelemetry's semantic conventions for HTTP servers.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dlicmd import __version__
from local_backend.errors import ServingError

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
SERVER, GATEWAY = "dlicmd-local-backend", "dlicmd-gateway"
#: Seconds to deliver the last spans when the server ends.
_GOODBYE = 2.0
#: Starts the span of a request; None while tracing is off.
_begin: Callable[[str, Mapping[str, str], int | None], Any] | None = None


class Span:
    """The span of one request, until `end`. Costs nothing while tracing is off."""

    def __init__(self, method: str, headers: Mapping[str, str], seconds: float = 0.0) -> None:
        """Start the span, or give it a start that so many `seconds` ago. `headers` may name its parent span (W3C Trace
        Context)."""
        started = time.time_ns() - int(seconds * 1e9) if seconds else None
        self._span = _begin(method, headers, started) if _begin is not None else None

    def end(self, *, method: str, route: str, status: int, **more: str) -> None:
        """End the span with the outcome of the request. `more`: attributes of this product, such as `request_id`, the
        id of the request in the log."""
        if self._span is None:
            return
        self._span.update_name(f"{method} {route}")
        self._span.set_attributes({
            "http.request.method": method, "http.route": route, "http.response.status_code": status,
            **{f"dlicmd.{name}": value for name, value in more.items()},
        })
        if status >= 500:
            self._span.set_attribute("error.type", str(status))
        self._span.end()


def is_on() -> bool:
    """Return whether spans are sent."""
    return _begin is not None


@contextmanager
def traced(service: str = SERVER) -> Iterator[None]:
    """Send spans of a service within the block, if the environment names a collector. A collector that does not answer
    delays no request: spans that it does not accept are dropped. Raises ServingError when the libraries are missing."""
    global _begin
    wanted = any(os.environ.get(name) for name in _ENDPOINTS)
    if not wanted or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        yield
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ImportError:
        raise ServingError("OTEL_EXPORTER_OTLP_ENDPOINT is set, but its libraries are not installed; run "
                          "pip install 'dlicmd[otel]', or unset the variable") from None
    # OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME take precedence.
    about = Resource.create({"service.name": service, "service.version": __version__})
    about = about.merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=about, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    tracer, context = provider.get_tracer("local_backend", __version__), TraceContextTextMapPropagator()

    def begin(method: str, headers: Mapping[str, str], started: int | None) -> Any:
        return tracer.start_span(method, context.extract(headers), SpanKind.SERVER, start_time=started)

    _begin = begin
    try:
        yield
    finally:
        _begin = None
        # `shutdown` waits for a collector that does not answer. The end of the server must not wait for that.
        last = threading.Thread(target=provider.shutdown, daemon=True)
        last.start()
        last.join(_GOODBYE)
