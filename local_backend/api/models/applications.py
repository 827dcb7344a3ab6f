"""The scheduler's view of execs: applications, packs of jobs, instances and Kubernetes objects."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import NotRequired, TypedDict

from dlicmd.contract import wire
from local_backend.api.models.common import Body, Known, Refusal, State, Time, described, one_of


@described
class Task(TypedDict):
    """A process of an application."""

    name: str
    """Name: task0 is the driver, task12n-1 the first worker"""
    state: State
    """State of the process"""


@described
class Kernel(TypedDict):
    """A host of an application."""

    ip: str
    """Address of the host"""


@described
class Application(TypedDict):
    """An exec or a pack of jobs. Times are whole epoch seconds, 0 if unknown. Memory is in MiB."""

    id: str
    """ID of the exec or pack"""
    name: str
    """Name of the application"""
    state: State
    """State of the application"""
    type: str
    """Type of the application"""
    tag: str
    """Resource plan and user"""
    consumer: str
    """Path of the resource plan"""
    submit_user: str
    """User of the application"""
    priority: int
    """Priority"""
    submit_time: int
    """Time of the submission"""
    start_time: int
    """Time of the start"""
    end_time: int
    """Time of the end"""
    task12n_resreq: str
    """What a worker requests; for a pack, the sum of what its jobs may use"""
    task12n_num: int
    """Number of workers"""
    used_gpu: float
    """GPU slots in use"""
    used_cpu: float
    """CPU slots in use"""
    used_mem: float
    """Memory in use"""
    task12n: list[Task]
    """The newest 100 workers"""
    kernels: list[Kernel]
    """Hosts of a running application"""
    is_packing: bool
    """Whether the application is a pack"""
    pack_id: NotRequired[str]
    """ID of the pack that the job belongs to"""
    task0_resreq: NotRequired[str]
    """What the driver requests"""
    task0: NotRequired[Task]
    """The driver of an elastic exec"""
    message: NotRequired[Known[str]]
    """Why the application has no slots, or that it recovers"""
    reason: NotRequired[Known[str]]
    """A stable code for `message`"""


@described
class SparkDriver(TypedDict):
    """The driver or an executor of an application."""

    id: str
    """ID of the application, or number of the executor"""
    state: State
    """State of the process"""
    host: str
    """Address of the host"""


@described
class ApplicationDetails(Application):
    """An application, also with the names of the first product generation."""

    sparkinstancegroupid: str
    """ID of the only instance group"""
    applicationid: str
    """ID of the exec"""
    applicationname: str
    """Name of the application"""
    driverid: str
    """ID of the exec"""
    driver: SparkDriver
    """The driver"""
    executors: list[SparkDriver]
    """The newest 100 executors"""
    slots: int
    """Number of slots that the exec holds"""
    username: str
    """User of the application"""
    submittedtime: Time
    """Time of the submission"""
    endtime: str
    """Time of the end as ISO 8601, empty for an active application"""
    apprunduration: float
    """Minutes since the start"""


@described
class Total(TypedDict):
    """A sum."""

    total: float
    """The sum"""


@described
class MeasuredApplication(ApplicationDetails):
    """An application with the use of its GPUs."""

    gpuslots: NotRequired[float]
    """Number of GPU slots"""
    gpumemused: NotRequired[Total]
    """Memory in use on these GPUs in MiB"""
    gpudevutil: NotRequired[Total]
    """Sum of the utilization of these GPUs in percent"""


class ApplicationQuery(BaseModel):
    """Selects applications. An empty value selects nothing in particular."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    applicationid: str = ""
    """ID of the application"""
    applicationname: str = ""
    """Name of the application"""
    driverid: str = ""
    """ID of the application"""
    search: str = ""
    """Text in the ID, the name or the user"""
    state: str = ""
    """One state, or several separated by commas"""
    sort: str = ""
    """Field to sort by"""
    order: str = ""
    """`desc` sorts in descending order"""
    start: str = Field("", json_schema_extra={"pattern": "^[0-9]{0,10}$"})
    """Number of applications to skip"""
    length: str = Field("", json_schema_extra={"pattern": "^[0-9]{0,10}$"})
    """Maximum number of applications; 10,000 by default"""


@described
class StopRequested(TypedDict):
    """The answer to a request to stop an application."""

    id: str
    """ID of the application"""
    message: str
    """A sentence"""


class StopMany(Body):
    """Applications to stop."""

    ids: Annotated[
        list[str], Field(max_length=wire.MOST_IDS),
        Refusal(f'The body must be a JSON object with a list "{wire.IDS}" of at most {wire.MOST_IDS} strings'),
    ]
    """IDs of applications and packs"""


@described
class StopResult(TypedDict):
    """The result for one application."""

    id: str
    """The given ID"""
    stopped: bool
    """Whether the application was active and will be stopped"""
    state: NotRequired[State]
    """State of the application; absent for an unknown one"""
    message: str
    """A sentence"""


@described
class Instance(TypedDict):
    """An instance group."""

    uuid: str
    """ID of the instance group"""
    name: str
    """Name"""
    version: str
    """Always empty"""
    masterUrl: str
    """Address of this server"""
    executionUser: str
    """The calling user"""
    state: Annotated[str, one_of("STARTED")]
    """Always STARTED"""
    historyServerUrl: str
    """Always empty"""
