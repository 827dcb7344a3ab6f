"""Searches for hyper-parameters, their experiments, and the algorithms."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from typing_extensions import NotRequired, TypedDict

from local_backend.api.models.common import Known, described, one_of
from local_backend.store.searches import EXPERIMENT_STATES, STATES

#: `YYYY-MM-DD HH:MM:SS` in the time zone of the server
LocalTime = Annotated[str, Field(json_schema_extra={"pattern": r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$"})]


@described
class SearchCreated(TypedDict):
    """A search that has begun."""

    uid: str
    """Name of the search"""
    href: str
    """Path of the search"""


@described
class ParameterValue(TypedDict, total=False):
    """The value of a parameter in an experiment."""

    name: str
    """Name of the parameter"""
    type: str
    """`fix`; only for ExperimentGridSearch"""
    dataType: str
    """`int`, `double` or `str`"""
    userDefined: bool
    """As in the request"""
    fixedVal: str
    """The value as text"""


@described
class MetricRange(TypedDict):
    """An additional metric of an experiment."""

    name: str
    """Name of the metric"""
    min: float
    """Smallest value"""
    max: float
    """Largest value"""
    latest: float
    """Last value"""


@described
class ExperimentObject(TypedDict):
    """An experiment of a search. Unknown values are absent."""

    id: int
    """Number of the experiment, from 0"""
    hyperParams: list[ParameterValue]
    """Its parameters; of algorithms with rungs, the resource is the last one"""
    state: Annotated[str, one_of(*EXPERIMENT_STATES)]
    """State of the experiment; WAITING: it rests at a rung"""
    metricVal: NotRequired[Known[float]]
    """Value of the objective; 9999.99 (-9999.99 for maximize) if the experiment failed"""
    metrics: NotRequired[Known[list[MetricRange]]]
    """The additional metrics"""
    objectives: NotRequired[Known[dict[str, float]]]
    """The values of all objectives, of a search with several, and of the metrics with constraints"""
    appId: NotRequired[Known[str]]
    """ID of its exec"""
    startTime: NotRequired[Known[LocalTime]]
    """When its exec was submitted or began"""
    endTime: NotRequired[Known[LocalTime]]
    """When it ended, or was set aside"""
    message: NotRequired[Known[str]]
    """Why it has no result"""
    resource: NotRequired[Known[int]]
    """How much of the resource it may use, of algorithms with rungs"""
    rung: NotRequired[Known[int]]
    """Its rung, from 0"""
    bracket: NotRequired[Known[int]]
    """Its bracket, from 0"""


@described
class SearchObject(TypedDict):
    """A search. Unknown values are absent."""

    hpoName: str
    """Name of the search"""
    state: Annotated[str, one_of(*STATES)]
    """State of the search"""
    running: int
    """Number of running experiments"""
    complete: int
    """Number of ended experiments, failed ones included"""
    failed: int
    """Number of failed experiments"""
    progress: str
    """Ended experiments, and their total number"""
    createtime: LocalTime
    """When it was created"""
    creator: str
    """User who created it"""
    duration: str
    """Run time as hours:minutes:seconds"""
    experiments: NotRequired[Known[list[ExperimentObject]]]
    """The experiments by their numbers"""
    best: NotRequired[Known[ExperimentObject]]
    """The best finished experiment"""
    pareto: NotRequired[Known[list[int]]]
    """Experiments that no other one beats in all objectives, of a search with several"""
    algoDef: NotRequired[Known[dict[str, Any]]]
    """`algoDef` of the request, without unused members"""
    hyperParams: NotRequired[Known[list[dict[str, Any]]]]
    """`hyperParams` of the request, without unused members"""
    message: NotRequired[Known[str]]
    """Why the search ended, or waits"""
    metric: str
    """The objective"""
    objective: str
    """`minimize` or `maximize`"""
    algorithm: str
    """Name of the algorithm"""


@described
class ExperimentValues(TypedDict):
    """The values of the objective while an experiment runs."""

    metric: str
    """The objective"""
    points: list[list[float]]
    """Pairs of step and value"""


@described
class Importances(TypedDict):
    """How much each parameter matters, by PED-ANOVA."""

    importances: dict[str, float]
    """Name of a parameter → its part, in descending order; empty while too few results are known"""


@described
class AlgorithmObject(TypedDict):
    """An algorithm of searches; without any key if there is none of the name."""

    name: NotRequired[str]
    """Name of the algorithm"""
    type: NotRequired[Annotated[str, one_of("BUILD_IN", "USER_PLUGIN")]]
    """Whether it is built in or installed"""
    remoteExec: NotRequired[bool]
    """As given at its installation"""
    path: NotRequired[Known[str]]
    """Folder of an installed algorithm"""
    condaHome: NotRequired[Known[str]]
    """conda installation of an installed algorithm"""
    condaEnv: NotRequired[Known[str]]
    """conda environment of an installed algorithm"""
    creator: NotRequired[Known[str]]
    """User who installed it"""
    createtime: NotRequired[Known[LocalTime]]
    """When it was installed"""
    logLevel: NotRequired[Known[str]]
    """Lowest level of its log"""


@described
class AlgorithmParts(TypedDict, total=False):
    """An installation of an algorithm as multipart/form-data."""

    data: str
    """JSON or a Python literal: `name`, and `path`, `condaHome`, `condaEnv`, `remoteExec`, `logLevel` if needed"""
    file: Annotated[str, Field(json_schema_extra={"format": "binary"})]
    """The packed files, `optimizer.py` among them"""


@described
class SearchParts(TypedDict, total=False):
    """A search as multipart/form-data: its definition, and its code."""

    data: str
    """The definition, JSON or a Python literal: `hpoName`, `modelSpec`, `algoDef`, `hyperParams` or `experiments`"""
    file: Annotated[str, Field(json_schema_extra={"format": "binary"})]
    """The packed model folder, or one file. Any name of the part is accepted"""
