"""Models that answer requests, their revisions, kernels, profiles and runtimes."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from typing_extensions import NotRequired, TypedDict

from local_backend.api.models.common import Known, Time, described, one_of
from local_backend.store.models import REVISION_STATES

#: States of a model as answers show them, by the state of the revision that stands for it.
SHOWN = {"serving": "Started", "starting": "Starting", "failed": "Failed", "stored": "Stopped"}
_ModelState = Annotated[str, one_of(*SHOWN.values())]


@described
class DlimProblem(TypedDict):
    """Code and sentence of an error."""

    code: str
    """The stable code"""
    message: str
    """What happened, and what to do next"""


@described
class DlimError(TypedDict):
    """An error of a call below /dlim/v1."""

    error: DlimProblem
    """The error"""
    msg: str
    """The same sentence"""


@described
class DlimTokens(TypedDict):
    """Tokens of a user."""

    user_token: str
    """Token for all calls"""
    access_token: str
    """The same token"""
    service_token: str
    """Token that only sends requests to models"""


@described
class DlimServiceToken(TypedDict):
    """A token that only sends requests to models."""

    service_token: str
    """The token"""


@described
class DlimLogon(TypedDict):
    """User and password of a logon."""

    method: str
    """`password`"""
    userpasswd: str
    """`USER:PASSWORD` in Base64"""


@described
class RevisionObject(TypedDict):
    """One deployed version of a model."""

    number: int
    """Number of the revision, from 1"""
    state: Annotated[str, one_of(*REVISION_STATES)]
    """State of the revision"""
    weight: int
    """Part of the requests that it gets, relative to the other revisions"""
    creator: str
    """User who deployed it"""
    createTime: Time
    """When it was deployed"""
    execId: NotRequired[Known[str]]
    """ID of the exec that runs its kernels, or of the last one that did"""
    source: NotRequired[Known[dict[str, Any]]]
    """The exec and the data that made it"""
    kernels: int
    """Number of kernels that take requests"""
    message: NotRequired[Known[str]]
    """Why it is in this state"""


@described
class ModelObject(TypedDict):
    """A model. Times are epoch seconds, 0: never."""

    name: str
    """Name of the model"""
    uid: str
    """ID of the model"""
    tag: str
    """Text that the user gave it"""
    size: int
    """Bytes of its files"""
    weight_path: str
    """Path of its weights in the folder of the model, `./` or `N/A`"""
    model_path: str
    """Folder of its files on the server"""
    create_time: int
    """When it was deployed first"""
    last_updated_time: int
    """When it was changed last"""
    started_at: int
    """When it was started last"""
    creator: str
    """User who deployed it first"""
    runtime: str
    """Name of its runtime"""
    kernel_path: str
    """File of its kernel; empty for a ready-made kernel"""
    service_uri: str
    """URL that takes requests; empty while it is stopped"""
    stream_uri: str
    """Address for gRPC; empty while it is stopped"""
    attributes: list[dict[str, Any]]
    """Values that the kernel can read: `key` and `value`"""
    mk_environments: list[dict[str, Any]]
    """Environment variables of the kernel: `name` and `value`"""
    schema_version: str
    """Always `1`"""
    framework: NotRequired[Known[str]]
    """Framework that the user named"""
    kernel_type: NotRequired[Known[str]]
    """Name of the ready-made kernel"""
    state: _ModelState
    """State of the model"""
    message: NotRequired[Known[str]]
    """Why it does not serve, or not as it is meant to"""
    shared: list[str] | bool
    """Users that may see it and send requests, beside its creator; true for all users"""
    revisions: list[RevisionObject]
    """Its revisions, oldest first"""


@described
class LoadObject(TypedDict):
    """What a model did in the 5 seconds before a time."""

    when: float
    """The time, in epoch seconds"""
    requests: float
    """Answers per second"""
    failed: float
    """Failures per second"""
    waiting: int
    """Requests that waited for a kernel at this time"""
    running: int
    """Requests that kernels had at this time"""
    kernels: int
    """Kernels that took requests at this time"""
    p50: NotRequired[Known[float]]
    """Seconds below which half of the latencies were; absent without an answer"""
    p99: NotRequired[Known[float]]
    """Seconds below which 99 % of the latencies were; absent without an answer"""


@described
class ModelExtension(TypedDict):
    """The resource plan of a model."""

    name: str
    """Name of the model"""
    resource_plan: str
    """Path of the resource plan that its kernels count for"""


@described
class ModelExtensions(TypedDict):
    """The models with their resource plans."""

    model_list: list[ModelObject]
    """The models"""
    extension_list: list[ModelExtension]
    """Their resource plans"""


@described
class KernelObject(TypedDict):
    """A kernel: one process that answers requests."""

    container_uid: str
    """ID of the kernel: its number"""
    container_host: str
    """Machine that it runs on"""
    container_status: Annotated[str, one_of("STARTING", "IDLE", "RUNNING", "LEAVING")]
    """What it does now"""
    total_task: int
    """Number of requests that it has got"""
    running_task: int
    """Number of requests that it has now"""
    finished_task: int
    """Number of requests that it answered"""
    failed_task: int
    """Number of requests that failed"""


@described
class ReplicaObject(TypedDict):
    """The service of one revision."""

    isd_uid: str
    """ID of the service"""
    pj_jobid: str
    """ID of its job, with the ID of its exec at the end"""
    gpu_mode: Annotated[str, one_of("no", "shared", "exclusive")]
    """How kernels use GPUs"""
    gpu_packid: str
    """Pack of kernels that share a GPU"""
    client_number: int
    """Number of connections that have sent requests"""
    pending_tasks: int
    """Number of requests that wait for a kernel"""
    request_per_sec: float
    """Answered requests per second, in the last seconds"""
    data_size_per_sec: float
    """Bytes per second of requests and answers, in the last seconds"""
    isd_container: list[KernelObject]
    """Its kernels"""
    revision: int
    """Number of the revision"""


@described
class InstanceObject(TypedDict):
    """What a model does now."""

    name: str
    """Name of the model"""
    state: Annotated[str, one_of("enabled", "disabled", "not-available")]
    """`disabled`: stopped; `not-available`: it starts, or cannot start"""
    instances: NotRequired[Known[list[ReplicaObject]]]
    """Its services, if it is enabled"""
    message: NotRequired[Known[str]]
    """Why it does not serve"""


@described
class ReadmeObject(TypedDict):
    """The README of a model."""

    readme: str
    """The text"""


@described
class StreamingObject(TypedDict):
    """Where a model takes requests by gRPC."""

    streaming_service_uri: str
    """Address and port; empty while it is stopped"""


@described
class ModelWhyObject(TypedDict):
    """Why a model does not serve, or has fewer kernels than it wants."""

    state: _ModelState
    """State of the model"""
    message: NotRequired[Known[str]]
    """The reason, as a sentence"""
    advice: NotRequired[Known[Annotated[str, one_of("wait", "change", "ask")]]]
    """What to do: wait, change something, or ask an administrator"""
    starts: NotRequired[Known[str]]
    """The event that would start a kernel, in words"""


@described
class ModelArchive(TypedDict, total=False):
    """A model as multipart/form-data."""

    file: Annotated[str, Field(json_schema_extra={"format": "binary"})]
    """Archive of the folder of the model: tar, tar.gz or zip. Any name of the part is accepted"""


@described
class RuntimeObject(TypedDict):
    """A runtime: the environment that kernels run in."""

    type: str
    """Name of the runtime"""
    schema_version: NotRequired[Known[str]]
    """`1`"""
    launcher: NotRequired[Known[str]]
    """Program that starts kernels; any but WMLA's `python_launcher.sh` speaks the kernel protocol"""
    command: NotRequired[Any]
    """Command that speaks the kernel protocol, as text or list of words"""
    conda_home: NotRequired[Known[str]]
    """conda installation"""
    conda_env_name: NotRequired[Known[str]]
    """Name or path of a conda environment; empty: the Python environment of the server"""
    docker_img: NotRequired[Known[str]]
    """Always empty"""
    pre_exec: NotRequired[Known[str]]
    """Always empty"""
    machine_type: NotRequired[Known[str]]
    """Machines that it is for; not checked"""
    description: NotRequired[Known[str]]
    """Description"""
    envs: NotRequired[Known[list[dict[str, Any]]]]
    """Environment variables of kernels: `name` and `value`"""
    attributes: NotRequired[Any]
    """As given"""
    creator: NotRequired[Known[str]]
    """User who made it; absent for a built-in runtime"""
    epoch_created: NotRequired[Known[int]]
    """When it was made, in epoch seconds"""
    epoch_updated: NotRequired[Known[int]]
    """When it was changed last, in epoch seconds"""


@described
class RuntimeList(TypedDict):
    """The runtimes."""

    runtimes: list[RuntimeObject]
    """The runtimes, built-in ones first"""


@described
class DlimStatus(TypedDict):
    """The answer to a deletion."""

    status: str
    """Always `OK`"""


@described
class SavedModelObject(TypedDict):
    """One version of a model that was saved from an exec."""

    name: str
    """Name of the model"""
    version: int
    """Number of the version, from 1"""
    exec: str
    """ID of the exec that made it"""
    space: NotRequired[Known[str]]
    """Space that it was promoted to"""
    creator: str
    """User who saved it"""
    createTime: Time
    """When it was saved"""
    size: int
    """Bytes of its files"""
    source: dict[str, Any]
    """The exec, its code and its data"""


@described
class NewSavedModel(TypedDict):
    """A model to save."""

    name: str
    """Name of the model"""
    exec: str
    """ID of a finished exec"""
    path: NotRequired[str]
    """Folder or file of the result; `.`: the whole result; by default the files that serving needs, without the states
    from which a training continues"""


@described
class SavedModelDeployment(TypedDict, total=False):
    """How to deploy a saved model, or the result of an exec."""

    kernel: str
    """File of the kernel in the result or the submitted code, or the name of a ready-made kernel; by default
    `kernel.py`, or the only ready-made kernel that loads such files"""
    kernel_type: str
    """The same, for the name of a ready-made kernel"""
    name: str
    """Name of the model"""
    runtime: str
    """Name of the runtime, by default the Python of the server"""
    weight: str
    """Path of the weights in the result or the submitted code"""
    tag: str
    """Any text"""
    attributes: dict[str, Any]
    """Values that the kernel can read"""
    environments: dict[str, Any]
    """Environment variables of the kernel"""
    version: int
    """Version of the saved model, by default the newest one"""


@described
class ModelClassObject(TypedDict):
    """A class in the files of a saved model."""

    name: str
    """Name for the attribute `class`"""
    needs: list[str]
    """Arguments without a default, for the attribute `class_args`"""


@described
class ModelLoadingObject(TypedDict):
    """What a deployment of a saved model uses, and all in its files."""

    kernel: str
    """File of the kernel, or name of the ready-made kernel; empty: the request must name it"""
    weight: str
    """File or folder of the weights; empty: unknown"""
    modelClass: str
    """The class, or all that the kernel tries; empty: not needed, or unknown"""
    kernels: list[str]
    """Possible kernels"""
    weights: list[str]
    """Files or folders that can be the weights, at most 200"""
    classes: list[ModelClassObject]
    """Classes in the files, at most 200"""
    error: NotRequired[DlimProblem]
    """Why the deployment would be refused"""


@described
class ModelSpace(TypedDict, total=False):
    """Where a saved model is promoted to."""

    space: str
    """Name of the space; required"""
    version: int
    """Version of the saved model, by default the newest one"""


@described
class EdiModel(TypedDict):
    """A model in a folder that the server reads."""

    name: str
    """Name of the model"""
    edi_py: str
    """File of the kernel in the folder"""
    modelPath: str
    """Folder of the user's data"""
    weightPath: str
    """Path of the weights in the folder, or `N/A`"""
    runtime: str
    """Name of the runtime"""
    attribute: NotRequired[str]
    """Values that the kernel can read: `KEY=VALUE,KEY=VALUE`, or a JSON object"""
    mcenv: NotRequired[str]
    """Environment variables of the kernel, in the same form"""
    type: NotRequired[str]
    """Any text"""
