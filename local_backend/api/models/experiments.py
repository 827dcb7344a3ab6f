"""Model definitions, hardware specifications and experiments of the experiment builder."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field
from typing_extensions import NotRequired, TypedDict

from dlicmd.contract import wire
from local_backend.api.models.common import Body, Known, Refusal, Time, described, one_of
from local_backend.services.experiment_plans import NODES
from local_backend.store.users import is_name


def _text(key: str) -> Refusal:
    return Refusal(f'"{key}" is not a string')


def _whole(key: str) -> Refusal:
    return Refusal(f'"{key}" is not a whole number of at least 1')


def _user(name: str) -> str:
    if not is_name(name):
        raise ValueError
    return name


Shared = Annotated[
    Literal["everybody"] | Annotated[list[Annotated[str, AfterValidator(_user)]], Field(max_length=1000)] | None,
    Refusal(f'"{wire.SHARED_WITH}" must be "{wire.EVERYBODY}" or a list of users'),
]
Number = Annotated[int, Field(ge=1, le=1_000_000)]


class NewDefinition(Body):
    """A model definition to save. A definition of this name gets a new version."""

    name: Annotated[str, _text(wire.NAME)]
    """Name of the definition"""
    description: Annotated[str, _text(wire.DESCRIPTION)] = ""
    """What the definition is for"""
    framework: Annotated[str, _text(wire.FRAMEWORK)] = "PyTorch"
    """Framework, as `--exec-start` names it; `auto`: found from the source of the program"""
    command: Annotated[str, _text(wire.COMMAND)] = ""
    """Execution command: a Python file of the code with its arguments, or any other command; empty: `main.py`,
    `train.py`, or the only Python file"""
    condaEnv: Annotated[str | None, _text(wire.CONDA_ENVIRONMENT)] = None
    """Name or path of the conda environment"""
    environment: Annotated[dict[str, str], Refusal(f'"{wire.ENVIRONMENT}" is not an object of names and strings')] = (
        Field(default_factory=dict))
    """Environment variables of the program; no secrets"""
    sharedWith: Shared = None
    """Other users who may use it, or `everybody`; null leaves the list as it is"""


class NewHardware(Body):
    """A hardware specification to save. A specification of this name gets a new version."""

    name: Annotated[str, _text(wire.NAME)]
    """Name of the specification"""
    hardwareSpec: Annotated[dict[str, Any], Refusal(f'"{wire.HARDWARE_SPEC}" is not a JSON object')]
    """The specification: `{"nodes": {"num_nodes": 1, "mem": {"size": "8g"}, "gpu": {"num_gpu": 1}}}`"""
    description: Annotated[str, _text(wire.DESCRIPTION)] = ""
    """What the specification is for"""
    sharedWith: Shared = None
    """Other users who may use it, or `everybody`; null leaves the list as it is"""


class PlannedDefinition(Body):
    """A model definition in an experiment, and the hardware for it."""

    definition: Annotated[str, _text(wire.DEFINITION)]
    """NAME or OWNER/NAME of the model definition"""
    version: Annotated[Number | None, _whole(wire.VERSION)] = None
    """Version of the definition, by default the newest one"""
    command: Annotated[str, _text(wire.COMMAND)] = ""
    """Execution command in place of that of the definition and of the experiment"""
    nodes: Annotated[str | None, Refusal(f'"{wire.NODES}" is not a string'), one_of(*NODES)] = None
    """`single`: one process. `multi`: several processes with one process group. `elastic`: elastic nodes"""
    numWorker: Annotated[Number | None, _whole(wire.NUM_WORKER)] = None
    """Number of nodes; of elastic nodes the maximum"""
    minWorkers: Annotated[Number | None, _whole(wire.MIN_WORKERS)] = None
    """Minimum number of elastic nodes"""
    device: Annotated[Literal["cpu", "gpu"] | None, Refusal(f'"{wire.DEVICE}" is neither "cpu" nor "gpu"')] = None
    """Kind of the devices; by default as the hardware says"""
    hardware: Annotated[str | dict[str, Any] | None, Refusal(
        f'"{wire.HARDWARE_OF}" is neither the name of a hardware specification nor a specification')] = None
    """Name of a hardware specification, or a specification"""
    hardwareVersion: Annotated[Number | None, _whole(wire.HARDWARE_VERSION)] = None
    """Version of the named specification, by default the newest one"""
    migProfile: Annotated[str | None, _text(wire.MIG_PROFILE)] = None
    """Profile of a MIG slice, such as `1g.10gb`"""


class NewExperiment(Body):
    """An experiment to save or to check. An experiment of this name gets a new version."""

    name: Annotated[str, _text(wire.NAME)]
    """Name of the experiment"""
    definitions: Annotated[list[PlannedDefinition], Refusal(f'"{wire.DEFINITIONS_OF}" is not a list of objects')] = (
        Field(default_factory=list))
    """The model definitions"""
    description: Annotated[str, _text(wire.DESCRIPTION)] = ""
    """What the experiment is for"""
    dataSource: Annotated[list[Any], Refusal(f'"{wire.DATA_SOURCE}" is not a list')] = Field(default_factory=list)
    """Data sources of all model definitions, as `--data-source` takes them"""
    createDataPath: Annotated[bool, Refusal(f'"{wire.CREATE_DATA_PATH}" is neither true nor false')] = False
    """Whether missing data paths are created"""
    command: Annotated[str, _text(wire.COMMAND)] = ""
    """Execution command of all model definitions that have none of their own here"""
    sharedWith: Shared = None
    """Other users who may use it, or `everybody`; null leaves the list as it is"""


@described
class DefinitionParts(TypedDict, total=False):
    """A model definition as multipart/form-data."""

    data: str
    """The definition as JSON, see `NewDefinition`"""
    file: Annotated[str, Field(json_schema_extra={"format": "binary"})]
    """The code: a zip or tar file, or one program. Without it, the new version has the code of the newest one"""


@described
class DefinitionObject(TypedDict):
    """A version of a model definition."""

    name: str
    """Name"""
    owner: str
    """User that it belongs to"""
    version: int
    """Number of this version"""
    versions: int
    """Number of the newest version"""
    description: str
    """What it is for"""
    framework: str
    """Framework, as `--exec-start` names it"""
    command: str
    """Execution command; empty: `main.py`, `train.py`, or the only Python file"""
    program: NotRequired[Known[str]]
    """The file of the code that runs; absent for another command"""
    condaEnv: NotRequired[Known[str]]
    """Name or path of the conda environment; absent for that of the server"""
    environment: dict[str, str]
    """Environment variables of the program"""
    bytes: int
    """Bytes of the code"""
    sharedWith: Literal["everybody"] | list[str]
    """Other users who may use it"""
    created: Time
    """When the definition was made"""
    changed: Time
    """When this version was made"""


@described
class HardwareObject(TypedDict):
    """A version of a hardware specification."""

    name: str
    """Name"""
    predefined: bool
    """Whether every server of this version has it"""
    owner: NotRequired[Known[str]]
    """User that it belongs to; absent if it is predefined"""
    version: int
    """Number of this version"""
    versions: int
    """Number of the newest version"""
    description: str
    """What it is for"""
    hardwareSpec: dict[str, Any]
    """The specification"""
    usable: bool
    """Whether this machine has what it names"""
    message: NotRequired[Known[str]]
    """Why it is not usable on this machine"""
    sharedWith: Literal["everybody"] | list[str]
    """Other users who may use it"""
    changed: NotRequired[Known[Time]]
    """When this version was made; absent if it is predefined"""


@described
class PlannedDefinitionObject(TypedDict):
    """A model definition in an experiment, and the hardware for it."""

    definition: str
    """OWNER/NAME of the model definition"""
    version: int
    """Version of the definition"""
    command: str
    """Execution command in place of that of the definition and of the experiment; empty for none"""
    nodes: NotRequired[Known[str]]
    """`single`, `multi` or `elastic`; absent: as the definition says"""
    numWorker: NotRequired[Known[int]]
    """Number of nodes; of elastic nodes the maximum"""
    minWorkers: NotRequired[Known[int]]
    """Minimum number of elastic nodes"""
    device: NotRequired[Known[str]]
    """`cpu` or `gpu`"""
    hardware: NotRequired[Any]
    """Name of a hardware specification, or a specification"""
    hardwareVersion: NotRequired[Known[int]]
    """Version of the named specification"""
    migProfile: NotRequired[Known[str]]
    """Profile of a MIG slice"""


@described
class RunPartObject(TypedDict):
    """A model definition in a run of an experiment."""

    definition: str
    """OWNER/NAME of the model definition"""
    version: int
    """Version of the definition"""
    execId: NotRequired[Known[str]]
    """ID of the exec; absent if there is none"""
    state: NotRequired[Known[str]]
    """State of the exec; absent if there is none, or if it was deleted"""
    code: NotRequired[Known[str]]
    """Code of the error that refused the exec"""
    message: NotRequired[Known[str]]
    """Why the exec was refused, and what to do next"""


@described
class RunObject(TypedDict):
    """A run of an experiment."""

    run: int
    """Number of the run"""
    experiment: str
    """OWNER/NAME of the experiment"""
    version: int
    """Version of the experiment that ran"""
    creator: str
    """User that began the run"""
    created: Time
    """When the run began"""
    complete: bool
    """Whether each model definition has an exec"""
    parts: list[RunPartObject]
    """The model definitions in the order of the experiment"""
    warning: NotRequired[Known[str]]
    """Warnings for the user that began the run"""


@described
class ExperimentPlanObject(TypedDict):
    """A version of an experiment."""

    name: str
    """Name"""
    owner: str
    """User that it belongs to"""
    version: int
    """Number of this version"""
    versions: int
    """Number of the newest version"""
    description: str
    """What it is for"""
    dataSource: list[Any]
    """Data sources of all model definitions"""
    createDataPath: bool
    """Whether missing data paths are created"""
    command: str
    """Execution command of all model definitions that have none of their own here; empty for none"""
    definitions: list[PlannedDefinitionObject]
    """The model definitions"""
    sharedWith: Literal["everybody"] | list[str]
    """Other users who may use it"""
    created: Time
    """When the experiment was made"""
    changed: Time
    """When this version was made"""
    lastRun: NotRequired[Known[RunObject]]
    """The last run that the caller began; absent if there is none"""


@described
class PlanProblemObject(TypedDict):
    """A mistake in an experiment."""

    field: str
    """The place: `name`, `dataSource`, or `definitions.0.command`"""
    code: str
    """The stable code"""
    message: str
    """What is wrong, and what to do"""


@described
class PlanCheckObject(TypedDict):
    """The mistakes in an experiment, and what would run."""

    problems: list[PlanProblemObject]
    """The mistakes; empty if the experiment can be saved"""
    definitions: list[str | None]
    """For each model definition what would run, such as `elastic, 2 to 4 slots, PyTorch`; null if it has mistakes"""
