"""Counters of the gateway in the text format of Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from local_backend.inference.control import LATENCY_BOUNDS
from local_backend.inference.gateway.served_models import ServedModels

#: Content type of the page.
PAGE = "text/plain; version=0.0.4; charset=utf-8"


class LatencyHistogram:
    """Seconds from the head of a request until its answer."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BOUNDS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        """Count one request."""
        self.counts[bisect_left(LATENCY_BOUNDS, seconds)] += 1
        self.total += seconds

    def lines(self, name: str, labels: str) -> Iterable[str]:
        """Yield the lines of the histogram."""
        seen = 0
        for bound, count in zip((*map(str, LATENCY_BOUNDS), "+Inf"), self.counts, strict=True):
            seen += count
            yield f'{name}_bucket{{{labels},le="{bound}"}} {seen}'
        yield f"{name}_sum{{{labels}}} {self.total:.6f}"
        yield f"{name}_count{{{labels}}} {seen}"


class GatewayCounters:
    """What the gateway counts besides the queues. Labels are only names of models that exist."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, int], int] = {}
        self.latencies: dict[str, LatencyHistogram] = {}
        self.connections = 0
        self.accepted = 0

    def request(self, model: str, status: int, seconds: float) -> None:
        """Count one answer. `model` is empty if the request names no model that its user may use."""
        key = (model, status)
        self.requests[key] = self.requests.get(key, 0) + 1
        if model:
            found = self.latencies.get(model)
            if found is None:
                found = self.latencies[model] = LatencyHistogram()
            found.add(seconds)

    def histograms(self) -> dict[str, list[int]]:
        """Return the counts of the latencies of each model."""
        return {name: list(histogram.counts) for name, histogram in self.latencies.items()}

    def page(self, models: ServedModels, names: set[str], held: int) -> str:
        """Return the page about these models. `held`: bytes of bodies that the gateway holds."""
        out = _Page()
        out.start("dlim_gateway_connections", "gauge", "Open connections of clients.")
        out.line("dlim_gateway_connections", "", self.connections)
        out.start("dlim_gateway_connections_accepted_total", "counter", "Connections since the gateway started.")
        out.line("dlim_gateway_connections_accepted_total", "", self.accepted)
        out.start("dlim_gateway_body_bytes", "gauge", "Bytes of bodies that the gateway holds.")
        out.line("dlim_gateway_body_bytes", "", held)
        out.start("dlim_requests_total", "counter", "Answered requests by model and status.")
        for (model, status), count in sorted(self.requests.items()):
            if not model or model in names:
                out.line("dlim_requests_total", f'model="{model}",code="{status}"', count)
        out.start("dlim_request_seconds", "histogram", "Seconds from the head of a request until its answer.")
        for model, histogram in sorted(self.latencies.items()):
            if model in names:
                out.lines += histogram.lines("dlim_request_seconds", f'model="{model}"')
        _of_queues(out, models, names)
        return "\n".join(out.lines) + "\n"


class _Page:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def start(self, name: str, kind: str, meaning: str) -> None:
        self.lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]

    def line(self, name: str, labels: str, value: float) -> None:
        self.lines.append(f"{name}{{{labels}}} {value}" if labels else f"{name} {value}")


#: Name → kind and meaning of what each revision has; the attribute or count is in `_of_queues`.
_REVISIONS = {
    "dlim_queue_requests": ("gauge", "Requests that wait for a kernel."),
    "dlim_running_requests": ("gauge", "Requests that kernels have."),
    "dlim_kernels": ("gauge", "Kernels that are connected."),
    "dlim_kernels_ready": ("gauge", "Kernels that take requests."),
    "dlim_batches_total": ("counter", "Batches that kernels got."),
    "dlim_batched_requests_total": ("counter", "Requests in these batches."),
    "dlim_retried_requests_total": ("counter", "Requests that another kernel got because theirs ended."),
    "dlim_killed_kernels_total": ("counter", "Kernels that exceeded the execution timeout."),
    "dlim_transferred_bytes_total": ("counter", "Bytes of requests and answers."),
}


def _of_queues(out: _Page, models: ServedModels, names: set[str]) -> None:
    rows: list[tuple[str, tuple[float, ...]]] = []
    for name in sorted(names & models.models.keys()):
        for number, queue in sorted(models.models[name].queues.items()):
            rows.append((f'model="{name}",revision="{number}"', (
                len(queue.waiting), queue.running, len(queue.kernels), queue.ready, queue.batches, queue.batched,
                queue.retried, queue.killed, queue.transferred)))
    for position, (name, (kind, meaning)) in enumerate(_REVISIONS.items()):
        out.start(name, kind, meaning)
        for labels, values in rows:
            out.line(name, labels, values[position])
