"""Counters and timers of the server, for GET /metrics. Every label has few values, whatever clients send."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram, disable_created_metrics

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
#: Answers with an error, by its code: wrong passwords, throttled calls, full pools, quotas.
REFUSALS = Counter("dlicmd_refusals", "Calls that were refused or failed, by error code.", ["code"])
RECOVERIES = Counter("dlicmd_exec_recoveries", "Times that an exec began to recover from lost workers.")
REQUEUES = Counter("dlicmd_exec_requeues", "Times that an exec became pending again after an attempt.")
#: Runs that an earlier server started: adopted, lost (the runner was killed), or failed (cannot be found out now).
ADOPTIONS = Counter("dlicmd_adoptions", "Runs of earlier servers, by outcome.", ["outcome"])
TURNED = Gauge("dlicmd_last_turn_timestamp_seconds", "End of the last turn of a loop without an error.", ["loop"])
NURSERY = Gauge("dlicmd_nursery", "1 for the present state of the nursery.", ["state"])
DATABASE_WRITE_SECONDS = Histogram(
    "dlicmd_database_write_seconds", "Seconds that a transaction with writes took.", buckets=_CALL_SECONDS,
)
#: The following are measured once a minute, see runtime/condition.py. 0 means: none.
DATABASE_BYTES = Gauge("dlicmd_database_bytes", "Size of the database.")
DISK_FREE = Gauge("dlicmd_disk_free_bytes", "Free bytes of a file system.", ["place"])
DISK_SIZE = Gauge("dlicmd_disk_size_bytes", "Bytes of a file system.", ["place"])
OLDEST_PENDING = Gauge("dlicmd_queue_oldest_timestamp_seconds", "Submission of the oldest pending exec.")
CERTIFICATE_END = Gauge("dlicmd_certificate_expires_timestamp_seconds", "End of the certificate of the server.")
LAST_BACKUP = Gauge("dlicmd_last_backup_timestamp_seconds", "Time of the last backup.")
