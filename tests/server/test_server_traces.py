"""Spans of requests: a collector gets them, and a collector that does not answer delays no request."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest
from commands import Started
from span_collector import Collector
from support import PATIENCE

from dlicmd.contract import wire
from local_backend import tracing
from local_backend.errors import ServingError

pytestmark = pytest.mark.integration

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    yield found
    found.answers.set()
    found.server.shutdown()
    found.server.server_close()


def serve(home: Path, collector: Collector, **more: str) -> tuple[Started, int]:
    """Start a server that sends spans to that collector, and return the process and its port."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "DLI"))}
    environment |= more | {"DLICMD_HOME": str(home), "DLI_NURSERY_IDLE": "0", "OTEL_BSP_SCHEDULE_DELAY": "50",
                           "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server.server_port}"}
    process = Started("local_backend.cli", ("serve", "--embedded"), environment, home.parent)
    line = process.stdout.readline()
    return process, int(line.partition("127.0.0.1:")[2].partition(",")[0].partition("/")[0])


def ask(port: int, **headers: str) -> int:
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("GET", f"{wire.EXECS}/local-7?secret=s3cret", headers=headers)
    status = connection.getresponse().status
    connection.close()
    return status


def test_a_collector_gets_a_span_of_each_request(tmp_path: Path, collector: Collector) -> None:
    process, port = serve(tmp_path / "home", collector)
    try:
        assert ask(port, traceparent=PARENT, **{wire.REQUEST_ID: "build-7"}) == 401
        (span,) = collector.spans()
        said = {item.key: item.value.string_value or item.value.int_value for item in span.attributes}
        assert said["dlicmd.request_id"] == "build-7" and said["http.response.status_code"] == 401
        assert said["http.request.method"] == "GET" and span.name.startswith("GET ")
        assert span.trace_id.hex() == PARENT[3:35] and span.parent_span_id.hex() == PARENT[36:52]
        assert collector.resource["service.name"] == "dlicmd-local-backend" and "s3cret" not in str(span)
        collector.answers.clear()
        assert ask(port) == 401, "the server waits for the collector"
        collector.spans()
        assert ask(port) == 401
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(PATIENCE)
        assert process.returncode == 0


@pytest.mark.parametrize(("variables", "name"), [
    ({}, "from-attributes"), ({"OTEL_SERVICE_NAME": "from-name"}, "from-name"),
])
def test_resource_attributes_of_the_user_win(
    tmp_path: Path, collector: Collector, variables: dict[str, str], name: str
) -> None:
    attributes = "service.name=from-attributes,service.version=7,team=x"
    process, port = serve(tmp_path / "home", collector, OTEL_RESOURCE_ATTRIBUTES=attributes, **variables)
    try:
        assert ask(port) == 401
        collector.spans()
        assert {"service.name": name, "service.version": "7", "team": "x"}.items() <= collector.resource.items()
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(PATIENCE)
        assert process.returncode == 0


def test_missing_libraries_are_reported_with_an_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ServingError, match=r"dlicmd\[otel\]"), tracing.traced():
        pass
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with tracing.traced():
        pass
