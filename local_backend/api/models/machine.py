"""The server and its machine: configuration, status, frameworks, slots, and the history of slots."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from typing_extensions import NotRequired, TypedDict

from local_backend.api.models.common import Known, State, Time, described, one_of
from local_backend.api.models.execs import LastMetric


@described
class Configuration(TypedDict):
    """Configuration of the server."""

    MSD_ENABLED: str
    """Always `true`"""
    DLI_DATA_FS: str
    """Folder of the data on the server"""
    DLI_RESULT_FS: str
    """Folder of the results on the server"""
    DLICMD_EXTENSIONS: str
    """Names of the extensions of this server, separated by commas"""


@described
class Status(TypedDict):
    """Status of the server. The supervisor adds values of its own."""

    version: str
    """Version of the server"""
    embedded: bool
    """Whether the server has one user, who may use all paths of the machine"""
    uptime: int
    """Seconds since the start"""
    jobs: dict[str, int]
    """State of execs → number of execs in this state"""
    stopGrace: float
    """Seconds between SIGTERM and SIGKILL of a stopped exec"""
    slots: NotRequired[dict[str, Any]]
    """Slots: `total`, `held`, `drained` and the number of each kind"""
    queued: NotRequired[int]
    """Number of pending execs"""
    running: NotRequired[int]
    """Number of running execs"""
    nursery: NotRequired[str]
    """State of the nursery"""


@described
class FrameworkObject(TypedDict):
    """A framework that a submission may name."""

    name: str
    """Name in `--exec-start`"""
    description: str
    """Always empty"""
    desc: list[str]
    """Lines of help"""
    deployMode: str
    """Always `cluster`"""
    hasTask0: str
    """Driver of the framework, empty without one"""
    execMode: Annotated[str, one_of("distributed", "single")]
    """Whether several workers are possible"""
    appName: str
    """Name of the applications"""
    exports: NotRequired[Known[dict[str, str]]]
    """Environment variables"""
    numWorkers: NotRequired[Known[int]]
    """Default number of workers"""
    maxWorkers: NotRequired[Known[int]]
    """Maximum number of workers"""
    workerMemory: NotRequired[Known[str]]
    """Memory of a worker"""
    frameworkCmdGenerator: str
    """Name of the generator of the command line"""
    distributeStrategy: NotRequired[Known[str]]
    """How the workers share the work"""
    numPs: NotRequired[Known[int]]
    """Number of parameter servers"""
    backend: str
    """Library of the framework"""
    frameworkVersion: str
    """Version of the library"""


@described
class FrameworkDetail(TypedDict):
    """A framework in the form of the first product generation."""

    name: str
    """Name in `--exec-start`"""
    home: str
    """Always empty"""
    backend: str
    """Library of the framework"""
    accelerator: Annotated[str, one_of("Elastic", "Native")]
    """Whether the number of workers can change"""
    psNum: str
    """Number of parameter servers"""
    commIPNetwork: str
    """Always empty"""


@described
class SlotHolder(TypedDict):
    """An exec on a slot. Only the user of the exec and administrators see more than the share."""

    id: NotRequired[str]
    """ID of the exec"""
    user: NotRequired[str]
    """User of the exec"""
    consumer: NotRequired[str]
    """Path of the resource plan"""
    share: float
    """Share of the slot, 0 to 1"""
    model: NotRequired[str]
    """Name of the model that the exec serves; absent for other execs"""


@described
class SlotObject(TypedDict):
    """A slot."""

    id: str
    """ID of the slot"""
    kind: str
    """`gpu`, `cpu`, or the profile of a part of a GPU"""
    profile: str
    """Profile of a part of a GPU, otherwise empty"""
    state: Annotated[str, one_of("drained", "free", "leaving", "used")]
    """Whether the slot is free"""
    reason: NotRequired[Known[str]]
    """Why the slot is drained"""
    utilisation: NotRequired[Known[float]]
    """Utilization of the GPU, 0 to 1; of a CPU slot, the CPU load of its execs since the call before"""
    holders: list[SlotHolder]
    """The execs on the slot"""


@described
class PendingExec(TypedDict):
    """A pending exec."""

    id: str
    """ID of the exec"""
    user: str
    """User of the exec"""
    appName: str
    """Name of the application"""
    consumer: str
    """Path of the resource plan"""
    priority: int
    """Priority"""
    slots: float
    """Number of slots that the exec needs to start"""
    model: NotRequired[str]
    """Name of the model that the exec serves; absent for other execs"""
    message: NotRequired[str]
    """What the exec lacks, as a sentence"""
    reason: NotRequired[str]
    """What the exec lacks, as a code"""
    queuePosition: NotRequired[Known[int]]
    """Position in the queue, from 1"""
    expectedStart: NotRequired[Known[Time]]
    """Earliest possible start"""


@described
class SlotsView(TypedDict):
    """The slots of the machine, and the execs of the caller."""

    slots: list[SlotObject]
    """The slots"""
    queue: list[PendingExec]
    """Pending execs in the order of the queue"""
    running: list[RunningExec]
    """Running execs"""


@described
class RunningExec(TypedDict):
    """A running exec: its user, and fields of the exec."""

    user: str
    """User of the exec"""
    id: str
    """ID of the exec"""
    appName: str
    """Name of the application"""
    state: State
    """State of the exec"""
    slots: NotRequired[int]
    """Number of slots that the exec holds"""
    model: NotRequired[str]
    """Name of the model that the exec serves; absent for other execs"""
    recovering: NotRequired[bool]
    """true while the driver or all workers of the exec have died and new ones are being started"""
    lastMetrics: NotRequired[dict[str, LastMetric]]
    """Last values of the metrics that the program reported, by name"""
    workers: NotRequired[float]
    """Number of workers that train now"""
    epoch: NotRequired[float]
    """Current epoch, from 1"""
    epochs: NotRequired[float]
    """Number of epochs"""
    step: NotRequired[float]
    """Number of committed steps"""
    steps: NotRequired[float]
    """Number of steps of the whole exec"""
    loss: NotRequired[float]
    """Last loss"""
    accuracy: NotRequired[float]
    """Last accuracy"""
    samplesPerSecond: NotRequired[float]
    """Samples per second"""
    secondsLeft: NotRequired[float]
    """Estimated seconds until the end"""
    generation: NotRequired[float]
    """Number of the current membership"""
    resizes: NotRequired[float]
    """Number of intended changes of the membership"""
    deaths: NotRequired[float]
    """Number of workers that died without ending the exec"""
    ready: NotRequired[float]
    """Number of kernels of a service that take requests now"""
    message: NotRequired[str]
    """Why an exec without slots is parked, or that an exec recovers"""


@described
class HoldingTotal(TypedDict):
    """The slot-seconds of a consumer, user, exec or slot."""

    key: str
    """The consumer, user, exec or slot"""
    slotSeconds: float
    """Slot-seconds in the period"""
    share: float
    """Share of the total, 0 to 1"""


def _at(text: str) -> Any:
    return Field(description=text)


Interval = TypedDict("Interval", {
    "execId": Annotated[str, _at("ID of the exec")],
    "user": Annotated[str, _at("User of the exec")],
    "consumer": Annotated[str, _at("Path of the resource plan")],
    "slot": Annotated[str, _at("ID of the slot")],
    "kind": Annotated[str, _at("Kind of the slot")],
    "share": Annotated[float, _at("Share of the slot, 0 to 1")],
    "from": Annotated[Time, _at("Start")],
    "to": NotRequired[Annotated[Known[Time], _at("End; absent if the exec still holds the slot")]],
})
Holdings = TypedDict("Holdings", {
    "from": Annotated[Time, _at("Start of the period")],
    "to": Annotated[Time, _at("End of the period")],
    "by": Annotated[str, _at("How the rows are grouped")],
    "slotSeconds": Annotated[float, _at("Total of the slot-seconds")],
    "rows": Annotated[list[HoldingTotal] | list[Interval], _at("Totals, or with `by=holding` the single intervals")],
})
