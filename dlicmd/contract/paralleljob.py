"""The ParallelJob of an application, as the cluster's scheduler describes it, and the fields of it that are shown."""

from __future__ import annotations

import re
from typing import Any

from dlicmd.contract.reading import at, items, objects, words

KIND = "paralleljob"
POD = "pod"
PENDING_DURATION = "pendingDuration"
RUNNING_DURATION = "runningDuration"
PARALLEL_JOB_INFO = "parallelJobInfo"
_GPU = "lsf.ibm.com/gpu"
_ITEMS = "items"


def summary(job: Any) -> dict[str, Any]:
    """Return the fields of a job that `--exec-get` shows: its status, and name, GPU request, replica and memory of
    each task group."""
    status = {"jobStatus": at(job, "status", "jobStatus")}
    if is_pending(job) and at(job, "status", "jobPendingReason"):
        status["jobPendingReason"] = at(job, "status", "jobPendingReason")
    groups = at(job, "spec", "taskGroups")
    return {"status": status, "spec": [{"taskGroups": _group(group)} for group in items(groups)]}


def is_pending(job: Any) -> bool:
    """Return whether the job is pending."""
    return words(at(job, "status", "jobStatus")) == "Pending"


def created(job: Any) -> Any:
    """Return the ISO time since which the job is pending, or None."""
    return at(job, "status", "creationTimestamp")


def started(job: Any) -> Any:
    """Return the ISO time since which the job is running, or None."""
    return at(job, "status", "jobStartTime")


def _group(group: Any) -> dict[str, Any]:
    containers = items(at(group, "spec", "template", "spec", "containers"))
    resources = at(containers[0] if containers else None, "resources")
    memory = {kind: {"memory": at(resources, kind, "memory")} for kind in ("requests", "limits")}
    return {
        "metadata": {
            "name": at(group, "metadata", "name"),
            "annotations": {_GPU: at(group, "metadata", "annotations", _GPU)},
        },
        "spec": {
            "replica": at(group, "spec", "replica"),
            "template": {"spec": {"containers": {"resources": memory}}},
        },
    }


def listed(answer: Any) -> list[dict[str, Any]]:
    """Return the objects of a list of the cluster."""
    return objects(at(answer, _ITEMS))


def row(job: Any) -> dict[str, Any]:
    """Return a job by the columns of its table; None for a value that the server does not give. `created` is an ISO
    time."""
    labels, notes = at(job, "metadata", "labels"), at(job, "metadata", "annotations")
    return {
        "id": at(labels, "msd/job") or at(job, "metadata", "name"),
        "namespace": at(job, "metadata", "namespace"),
        "consumer": at(notes, "lsf.ibm.com/consumer"),
        "submit_user": at(notes, "lsf.ibm.com/submissionUser"),
        "type": at(labels, "msd/job-type"),
        "state": words(at(job, "status", "jobStatus")).upper() or None,
        "res_req": ",".join(_wanted(group) for group in items(at(job, "spec", "taskGroups"))) or None,
        "created": at(job, "metadata", "creationTimestamp"),
    }


def request(job: Any) -> str | None:
    """Return the request of a job's workers as the original client shows it: `num=2,ngpus=1,mem=4G,ncpus=1`, with
    `n/a` for a value that the server does not give. None for a job without task groups."""
    groups = items(at(job, "spec", "taskGroups"))
    if not groups:
        return None
    group = groups[-1]
    containers = items(at(group, "spec", "template", "spec", "containers"))
    asked = at(containers[0] if containers else None, "resources", "requests")
    amounts = {
        "num": words(at(group, "spec", "replica")), "ngpus": words(at(asked, "nvidia.com/gpu")),
        "mem": _memory(words(at(asked, "memory"))), "ncpus": words(at(asked, "cpu")),
    }
    return ",".join(f"{name}={value or 'n/a'}" for name, value in amounts.items())


def _memory(text: str) -> str:
    """Return an amount of memory without a fraction of zeros, in the largest unit that leaves it whole: `4G` for
    `4096.000000Mi`."""
    match = re.fullmatch(r"([0-9]+)(?:\.0+)?Mi", text)
    if match is None:
        return text
    megabytes = int(match[1])
    return f"{megabytes // 1024}G" if megabytes and megabytes % 1024 == 0 else f"{megabytes}M"


def owner(job: Any) -> str:
    """Return the uid by which pods name their job. The uid may be "": then the pods of the job cannot be distinguished
    from other pods."""
    return words(at(job, "metadata", "uid"))


def pod_owners(pod: Any) -> set[str]:
    """Return the `owner` of every job that a pod belongs to."""
    references = objects(at(pod, "metadata", "ownerReferences"))
    named = [at(pod, "metadata", "labels", "controller-uid"), *(reference.get("uid") for reference in references)]
    return {words(uid) for uid in named} - {""}


def pod_node(pod: Any) -> str:
    """Return the node that a pod runs on, "" while it has none."""
    return words(at(pod, "spec", "nodeName"))


def pod_addresses(pod: Any) -> set[str]:
    """Return the IP addresses of a pod."""
    several = objects(at(pod, "status", "podIPs"))
    return {words(ip) for ip in [at(pod, "status", "podIP"), *(each.get("ip") for each in several)]} - {""}


def _wanted(group: Any) -> str:
    """Return the request of a task group: `6*task12n(mem=8192Mi,cpu=1,gpu=num=1)`."""
    containers = items(at(group, "spec", "template", "spec", "containers"))
    asked = at(containers[0] if containers else None, "resources", "requests")
    memory = words(at(asked, "memory"))
    whole = re.fullmatch(r"([0-9]+)\.0+(\D.*)", memory)
    amounts = {
        "mem": (whole[1] + whole[2] if int(whole[1]) else "") if whole else memory,
        "cpu": words(at(asked, "cpu")),
        "gpu": words(at(asked, "nvidia.com/gpu")) or words(at(group, "metadata", "annotations", _GPU)),
    }
    told = ",".join(f"{name}={value}" for name, value in amounts.items() if value)
    count = words(at(group, "spec", "replica")) or "1"
    return f"{count}*{words(at(group, 'metadata', 'name')) or 'task'}" + (f"({told})" if told else "")
