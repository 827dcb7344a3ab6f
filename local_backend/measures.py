"""Counters and timers of the server, for GET /metrics. Every label has few values, whatever clients send."""

from __future__ import annotations

from prometheus_client import Counter, Histogram, disable_created_metrics

# These are a second series per counter, with its start time. The library does not type this function.
disable_created_metrics()  # type: ignore[no-untyped-call]

#: Bucket limits in seconds. Calls range from a query about one exec to an upload that is unpacked; a decision takes
#: milliseconds.
_CALL_SECONDS = (0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0)
_DECISION_SECONDS = (0.0005, 0.002, 0.01, 0.05, 0.25, 1.0, 5.0)

#: HTTP requests by method, path with its parameters unfilled, and status.
REQUESTS = Counter("dlicmd_http_requests", "HTTP requests answered.", ["method", "route", "status"])
REQUEST_SECONDS = Histogram(
    "dlicmd_http_request_seconds", "Seconds until a request was answered, including long polls.", ["route"],
    buckets=_CALL_SECONDS,
)
#: Submissions that were accepted, refused (the client's fault), or failed (this server's fault).
SUBMISSIONS = Counter("dlicmd_submissions", "Submissions received, by outcome.", ["outcome"])
DECISION_SECONDS = Histogram(
    "dlicmd_scheduling_decision_seconds", "Seconds that a decision of the scheduler took.", buckets=_DECISION_SECONDS,
)
#: Lines of evaluation metrics that were delivered to the targets of submissions, and attempts that failed.
FORWARDED = Counter("dlicmd_forwarded_metrics", "Lines of metrics forwarded to their receivers.", ["target"])
FORWARD_FAILURES = Counter("dlicmd_forward_failures", "Batches of metrics that a receiver did not accept.", ["target"])
