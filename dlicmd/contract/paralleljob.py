"""The ParallelJob of an application, as the cluster's scheduler describes it, and the part of it that is shown."""

from __future__ import annotations

from typing import Any

KIND = "paralleljob"
PENDING_DURATION = "pendingDuration"
RUNNING_DURATION = "runningDuration"
PARALLEL_JOB_INFO = "parallelJobInfo"
_GPU = "lsf.ibm.com/gpu"


def summary(job: Any) -> dict[str, Any]:
    """What `--exec-get` shows of a job: its status, and name, GPU request, replica and memory of each task group."""
    status = {"jobStatus": _at(job, "status", "jobStatus")}
    if is_pending(job) and _at(job, "status", "jobPendingReason"):
        status["jobPendingReason"] = _at(job, "status", "jobPendingReason")
    groups = _at(job, "spec", "taskGroups")
    return {"status": status, "spec": [{"taskGroups": _group(group)} for group in _items(groups)]}


def is_pending(job: Any) -> bool:
    """Whether the job waits."""
    return _at(job, "status", "jobStatus") == "Pending"


def created(job: Any) -> Any:
    """ISO time since which the job waits, or None."""
    return _at(job, "status", "creationTimestamp")


def started(job: Any) -> Any:
    """ISO time since which the job runs, or None."""
    return _at(job, "status", "jobStartTime")


def _group(group: Any) -> dict[str, Any]:
    containers = _items(_at(group, "spec", "template", "spec", "containers"))
    resources = _at(containers[0] if containers else None, "resources")
    memory = {kind: {"memory": _at(resources, kind, "memory")} for kind in ("requests", "limits")}
    return {
        "metadata": {
            "name": _at(group, "metadata", "name"),
            "annotations": {_GPU: _at(group, "metadata", "annotations", _GPU)},
        },
        "spec": {
            "replica": _at(group, "spec", "replica"),
            "template": {"spec": {"containers": {"resources": memory}}},
        },
    }


def _at(value: Any, *path: str) -> Any:
    """What is at a path of keys, or None where there is no such path."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
