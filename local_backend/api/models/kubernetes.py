"""Execs as Kubernetes objects: ParallelJobs, and their processes as pods."""

from __future__ import annotations

from typing import Annotated

from typing_extensions import NotRequired, TypedDict

from local_backend.api.models.common import Time, described, one_of

#: Annotations of a ParallelJob, and of a group of tasks.
JobAnnotations = TypedDict("JobAnnotations", {
    "lsf.ibm.com/consumer": str, "lsf.ibm.com/submissionUser": str, "lsf.ibm.com/gpu": str,
})
TaskAnnotations = TypedDict("TaskAnnotations", {"lsf.ibm.com/gpu": str})
JobLabels = TypedDict("JobLabels", {"msd/job": str, "msd/job-type": str})
PodLabels = TypedDict("PodLabels", {"controller-uid": str, "lsf.ibm.com/jobId": str})
Requests = TypedDict("Requests", {"memory": str, "cpu": str, "nvidia.com/gpu": str})


class Limits(TypedDict):
    """What a worker may use."""

    memory: str


class ContainerResources(TypedDict):
    """What a worker requests and may use."""

    requests: Requests
    limits: Limits


class Container(TypedDict):
    """A container of a worker."""

    name: str
    resources: ContainerResources


class ContainerList(TypedDict):
    """The containers of a worker."""

    containers: list[Container]


class Template(TypedDict):
    """The template of a worker."""

    spec: ContainerList


class TaskGroupMetadata(TypedDict):
    """Name of a group of tasks."""

    name: str
    annotations: TaskAnnotations


class TaskGroupSpec(TypedDict):
    """Number and template of the tasks."""

    replica: int
    template: Template


class TaskGroup(TypedDict):
    """The driver, or the workers."""

    metadata: TaskGroupMetadata
    spec: TaskGroupSpec


class JobMetadata(TypedDict):
    """Names of a ParallelJob."""

    name: str
    uid: str
    namespace: str
    creationTimestamp: Time
    labels: JobLabels
    annotations: JobAnnotations


class JobSpecification(TypedDict):
    """The tasks of a ParallelJob."""

    name: str
    description: str
    taskGroups: list[TaskGroup]


@described
class JobStatus(TypedDict):
    """Status of a ParallelJob."""

    jobStatus: Annotated[str, one_of("Pending", "Running", "Succeeded", "Failed")]
    """Status of the exec"""
    creationTimestamp: Time
    """Time of the submission"""
    jobPendingReason: NotRequired[str]
    """Why the exec is pending"""
    jobStartTime: NotRequired[Time]
    """Time of the start"""


class ParallelJob(TypedDict):
    """An exec."""

    apiVersion: str
    kind: Annotated[str, one_of("ParallelJob")]
    metadata: JobMetadata
    spec: JobSpecification
    status: JobStatus


class Owner(TypedDict):
    """The ParallelJob of a pod."""

    uid: str
    kind: str
    name: str


class PodMetadata(TypedDict):
    """Names of a pod."""

    name: str
    labels: PodLabels
    ownerReferences: list[Owner]


class PodSpec(TypedDict):
    """Place of a pod."""

    nodeName: str


class PodAddress(TypedDict):
    """Address of a pod."""

    ip: str


class PodStatus(TypedDict):
    """Status of a pod."""

    podIP: str
    podIPs: list[PodAddress]
    phase: Annotated[str, one_of("Running")]


class Pod(TypedDict):
    """A process of a running exec."""

    metadata: PodMetadata
    spec: PodSpec
    status: PodStatus


@described
class ObjectList(TypedDict):
    """All objects of a type."""

    items: list[ParallelJob] | list[Pod]
    """The objects; empty for an unknown type"""
