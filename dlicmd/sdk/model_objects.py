"""Models that serve requests, their revisions, kernels and runtimes as Python objects."""

from __future__ import annotations

from typing import Any, NamedTuple

from dlicmd.contract import dlim
from dlicmd.contract.reading import number, objects, words
from dlicmd.sdk.records import Key, Record, all_of, an_object, texts, whole_number


def _pairs(value: Any, key: str) -> dict[str, str]:
    """Return a list of objects with a name under `key` and a `value` as a mapping."""
    return {words(one.get(key)): words(one.get("value")) for one in objects(value)}


class DeployedRevision(Record):
    """One deployed version of a model (extension of the local backend)."""

    number = Key(dlim.NUMBER, whole_number)
    """Number of the revision, from 1."""
    state = Key(dlim.STATE, words)
    """State of the revision, such as `serving`."""
    message = Key(dlim.MESSAGE, words)
    """Reason for the state, as a sentence."""
    weight = Key(dlim.WEIGHT, whole_number)
    """Part of the requests that the revision gets, relative to the other revisions."""
    creator = Key(dlim.CREATOR, words)
    """User that deployed the revision."""
    create_time = Key(dlim.REVISION_TIME, words)
    """Time of the deployment."""
    exec_id = Key(dlim.EXEC_ID, words)
    """Id of the exec that runs the kernels. "" while the revision is stopped."""
    source = Key(dlim.SOURCE, an_object)
    """The exec and the data that made the revision. Empty for a folder."""
    kernels = Key(dlim.KERNELS, whole_number)
    """Number of kernels that are ready."""


class DeployedModel(Record):
    """A model of the inference service. Times are seconds since 1970, 0 for never."""

    name = Key(dlim.NAME, words)
    """Name of the model."""
    uid = Key(dlim.UID, words)
    """Id of the model."""
    tag = Key(dlim.TAG, words)
    """Text that the user gave the model."""
    size = Key(dlim.SIZE, whole_number)
    """Bytes of the submission."""
    creator = Key(dlim.CREATOR, words)
    """User that deployed the model."""
    runtime = Key(dlim.RUNTIME, words)
    """Name of the runtime."""
    kernel_path = Key(dlim.KERNEL_PATH, words)
    """File of the kernel within the submission."""
    weight_path = Key(dlim.WEIGHT_PATH, words)
    """File or folder of the weights within the submission."""
    model_path = Key(dlim.MODEL_PATH, words)
    """Folder of the submission on the server."""
    framework = Key(dlim.FRAMEWORK, words)
    """Framework that the user named."""
    create_time = Key(dlim.CREATE_TIME, whole_number)
    """Time of the first deployment."""
    last_updated_time = Key(dlim.UPDATE_TIME, whole_number)
    """Time of the last deployment."""
    started_at = Key(dlim.START_TIME, whole_number)
    """Time of the last start."""
    service_uri = Key(dlim.SERVICE_URI, words)
    """URL that takes requests. "" while the model is stopped."""
    stream_uri = Key(dlim.STREAM_URI, words)
    """Address for gRPC. "" while the model is stopped."""
    state = Key(dlim.STATE, words)
    """State: `Started`, `Stopped`, `Starting` or `Failed`. "" on servers without this key."""
    message = Key(dlim.MESSAGE, words)
    """Reason for the state, as a sentence."""
    revisions = Key(dlim.REVISIONS, all_of(DeployedRevision))
    """Revisions of the model, on the local backend."""

    @property
    def attributes(self) -> dict[str, str]:
        """Attributes that the kernel can read."""
        return _pairs(self.json.get(dlim.ATTRIBUTES), "key")

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of the kernel."""
        return _pairs(self.json.get(dlim.ENVIRONMENTS), dlim.NAME)

    @property
    def shared_with(self) -> list[str] | bool:
        """Users that may send requests, beside the creator; True for all users."""
        found = self.json.get(dlim.IS_SHARED)
        return True if found is True else texts(found)

    @property
    def is_started(self) -> bool:
        """Whether the model serves requests, or starts to."""
        if self.state:
            return self.state in (dlim.STARTED, dlim.STARTING)
        return bool(self.service_uri)


class ServingKernel(Record):
    """A kernel: one process that answers requests."""

    id = Key(dlim.KERNEL_ID, words)
    """Id of the kernel."""
    host = Key(dlim.KERNEL_HOST, words)
    """Machine of the kernel."""
    status = Key(dlim.KERNEL_STATUS, words)
    """Status of the kernel. `IDLE`: it waits for requests."""
    total = Key(dlim.TOTAL, whole_number)
    """Number of requests that the kernel has got."""
    running = Key(dlim.RUNNING, whole_number)
    """Number of requests that the kernel has not answered yet."""
    finished = Key(dlim.FINISHED, whole_number)
    """Number of requests that the kernel answered."""
    failed = Key(dlim.FAILED, whole_number)
    """Number of requests that failed."""


class ServingReplica(Record):
    """The service of a started model, with its kernels."""

    id = Key(dlim.SERVICE_ID, words)
    """Id of the service."""
    job_id = Key(dlim.SERVICE_JOB, words)
    """Id of the job that runs the kernels."""
    gpu_mode = Key(dlim.GPU_MODE, words)
    """Use of GPUs: `no`, `shared` or `exclusive`."""
    gpu_pack = Key(dlim.GPU_PACK, words)
    """Pack of kernels that share a GPU."""
    clients = Key(dlim.CLIENTS, whole_number)
    """Number of clients."""
    pending = Key(dlim.PENDING, whole_number)
    """Number of requests that wait for a kernel."""
    requests_per_second = Key(dlim.REQUEST_RATE, number)
    """Answered requests per second."""
    data_per_second = Key(dlim.DATA_RATE, number)
    """Bytes per second of requests and answers."""
    kernels = Key(dlim.CONTAINERS, all_of(ServingKernel))
    """Kernels that have been started."""
    revision = Key(dlim.REVISION, whole_number)
    """Number of the revision, on the local backend."""


class ServingState(Record):
    """What a model does now."""

    name = Key(dlim.NAME, words)
    """Name of the model."""
    status = Key(dlim.STATE, words)
    """`enabled`, `not-available` while it starts, or `disabled`."""
    message = Key(dlim.MESSAGE, words)
    """Reason for the state, as a sentence."""
    replicas = Key(dlim.INSTANCES, all_of(ServingReplica))
    """Services of the model. Empty unless the model is enabled."""

    @property
    def kernels(self) -> list[ServingKernel]:
        """The kernels of all services."""
        return [kernel for replica in self.replicas for kernel in replica.kernels]

    @property
    def state(self) -> str:
        """The state as `dlim` shows it, such as `Started`."""
        return dlim.SHOWN_STATE.get(self.status, self.status)


class ServingRuntime(Record):
    """A runtime: the environment in which kernels run."""

    name = Key(dlim.TYPE, words)
    """Name of the runtime."""
    launcher = Key(dlim.LAUNCHER, words)
    """Program that starts kernels."""
    conda_home = Key(dlim.CONDA_HOME, words)
    """Installation folder of conda on the server."""
    conda_env = Key(dlim.CONDA_ENV, words)
    """Name or path of the conda environment."""
    description = Key(dlim.DESCRIPTION, words)
    """Description of the runtime."""


class SavedModel(Record):
    """A version of a model in the model store: the result of an exec under a name."""

    name = Key(dlim.NAME, words)
    """Name of the model."""
    version = Key(dlim.VERSION, whole_number)
    """Number of the version, from 1."""
    exec_id = Key(dlim.EXEC, words)
    """Id of the exec that made the model."""
    space = Key(dlim.SPACE, words)
    """Space to which the model was promoted. "" before that."""
    creator = Key(dlim.CREATOR, words)
    """User that saved the model."""
    create_time = Key(dlim.REVISION_TIME, words)
    """Time at which the model was saved."""
    size = Key(dlim.SIZE, whole_number)
    """Bytes of the files."""
    source = Key(dlim.SOURCE, an_object)
    """The exec with its code and data."""


class ModelLoading(Record):
    """What a deployment of a saved model uses, and all in its files."""

    kernel = Key(dlim.KERNEL_FILE, words)
    """File of the kernel, or name of the ready-made kernel. "" if the deployment must name it."""
    weight = Key(dlim.WEIGHT_FILE, words)
    """File or folder of the weights. "" if it is unknown."""
    model_class = Key(dlim.MODEL_CLASS, words)
    """The class, or all that the kernel tries. "" if it is not needed, or unknown."""
    kernels = Key("kernels", texts)
    """Possible kernels."""
    weights = Key("weights", texts)
    """Files or folders that can be the weights."""
    classes = Key("classes", lambda value: [words(one.get(dlim.NAME)) for one in objects(value)])
    """Names of the classes in the files."""
    problem = Key(dlim.ERROR, lambda value: words(an_object(value).get(dlim.MESSAGE)))
    """Why the deployment would be refused, as a sentence. "" if it is possible."""


class ModelWhy(Record):
    """The reason why a model does not serve, or has fewer kernels than it wants, and what to do."""

    state = Key(dlim.STATE, words)
    """State of the model."""
    message = Key(dlim.MESSAGE, words)
    """Reason for the state, as a sentence."""
    advice = Key("advice", words)
    """What to do: `wait`, `change` or `ask`."""
    starts = Key("starts", words)
    """In words: the event that would start a kernel."""


class LogPart(NamedTuple):
    """A part of the log of a kernel. `end` is the offset of the next byte."""

    text: str
    end: int


class ServiceTokens(NamedTuple):
    """The tokens of a user: `user` for all calls, `service` for requests to models alone."""

    user: str
    service: str
