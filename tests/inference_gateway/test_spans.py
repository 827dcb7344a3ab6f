"""Spans of the gateway's requests: a collector gets them, and one that does not answer delays no request."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from calls import PATH, call
from gateway_host import GatewayHost, model
from span_collector import Collector

pytestmark = pytest.mark.integration
pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_requests_are_traced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collector = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server.server_port}")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    with ExitStack() as stack:
        stack.callback(collector.server.shutdown)
        stack.callback(collector.answers.set)
        host = stack.enter_context(GatewayHost(folder))
        host.serve(model())
        host.kernel()
        assert call(host, {"do": "sleep", "seconds": 0.2}, headers={"traceparent": PARENT}).status == 200
        (span,) = collector.spans()
        assert collector.resource["service.name"] == "dlicmd-gateway"
        assert span.name == f"POST {PATH}"
        assert (span.trace_id.hex(), span.parent_span_id.hex()) == (PARENT[3:35], PARENT[36:52])
        assert span.end_time_unix_nano - span.start_time_unix_nano >= 200_000_000
        found = {one.key: one.value.string_value or one.value.int_value for one in span.attributes}
        assert (found["http.response.status_code"], found["dlicmd.model"]) == (200, "m")
        collector.answers.clear()
        for _ in range(20):
            assert call(host).status == 200
        host.process.terminate()
        assert host.process.wait(60) == 0
