"""Execs: the exec object, and the answers about one exec."""

from __future__ import annotations

from typing import Annotated, Any

from typing_extensions import NotRequired, TypedDict

from local_backend.api.models.common import Known, State, Time, described, one_of
from local_backend.curves.model import SOURCES, UNITS


@described
class Pending(TypedDict):
    """Why an exec is pending or parked."""

    reason: str
    """What the exec lacks, as a code"""
    queuePosition: NotRequired[Known[int]]
    """Position in the queue, from 1"""
    expectedStart: NotRequired[Known[Time]]
    """Earliest possible start"""
    message: str
    """What the exec lacks, as a sentence"""


class Told(TypedDict, total=False):
    """What the server knows about an unfinished exec beyond its row: fields of an exec and of an application."""

    reason: str
    queuePosition: int | None
    expectedStart: str | None
    message: str


@described
class LastMetric(TypedDict):
    """The last value of a metric."""

    value: float
    """The value"""
    step: float
    """The step of the value"""
    stepUnit: NotRequired[str]
    """`step`, `epoch`, `batch`, or `line`: the values are counted, because the program named no step"""
    steps: NotRequired[float]
    """The last step of the training, if the program named it"""
    left: NotRequired[int]
    """Number of later values that are not finite; absent if there are none"""


class MoreOfExec(TypedDict, total=False):
    """Fields of an exec that are not scalars."""

    arguments: list[str] | None
    lastMetrics: dict[str, LastMetric] | None
    metrics: dict[str, float] | None
    parameters: dict[str, str | float | bool] | None
    tags: list[str] | None
    note: str | None
    favorite: bool | None


@described
class Exec(TypedDict):
    """An exec. Unknown values are absent, never null."""

    id: str
    """ID of the exec, such as local-1"""
    args: str
    """The command line of the submission"""
    submissionId: str
    """The ID again"""
    creator: str
    """User who submitted the exec"""
    state: State
    """State of the exec"""
    appId: str
    """ID of the application; equal to the ID of the exec"""
    schedulerUrl: str
    """Address of this server"""
    modelFileOwnerName: str
    """User who submitted the exec"""
    workDir: str
    """Folder of the submitted files on the server"""
    appName: str
    """Name of the application"""
    createTime: Time
    """Time of the submission"""
    elastic: bool
    """Whether the number of workers can change while the exec runs"""
    nameSpace: str
    """Namespace of the server"""
    numWorker: int
    """Requested number of workers"""
    framework: str
    """Framework of the submission"""
    dataSource: NotRequired[Known[list[dict[str, Any]]]]
    """The data sources of the submission, without secrets"""
    startTime: NotRequired[Known[Time]]
    """Time at which the exec first ran"""
    endTime: NotRequired[Known[Time]]
    """Time at which the exec ended"""
    message: NotRequired[Known[str]]
    """One line: why the exec ended, what a pending exec lacks, or what its program reports"""
    reason: NotRequired[Known[str]]
    """A stable code for `message`"""
    arguments: NotRequired[Known[list[str]]]
    """Words of the program, with secrets masked; only for a call with `Prefer: details`, and in the follow answer"""
    exitCode: NotRequired[Known[int]]
    """Exit code of the program"""
    hasResult: NotRequired[Known[bool]]
    """Whether an ended exec has a result"""
    userName: NotRequired[Known[str]]
    """User who submitted the exec; only for a submission with `sigName`, like the next 4 keys"""
    sigName: NotRequired[Known[str]]
    """Instance group of the submission"""
    sigId: NotRequired[Known[str]]
    """ID of the only instance group"""
    masterURL: NotRequired[Known[str]]
    """Address of this server"""
    executionUserName: NotRequired[Known[str]]
    """User who submitted the exec"""
    slots: NotRequired[Known[int]]
    """Number of slots that a running exec holds"""
    fixedSlots: NotRequired[Known[int]]
    """Number of slots that an administrator has fixed; absent if the scheduler decides"""
    search: NotRequired[Known[str]]
    """Name of the search that the exec is an experiment of"""
    experiment: NotRequired[Known[int]]
    """ID of the experiment in this search"""
    recovering: NotRequired[Known[bool]]
    """true while the driver or all workers of a running exec have died and new ones are being started"""
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
    lastMetrics: NotRequired[Known[dict[str, LastMetric]]]
    """The last values of at most 8 metrics by their names, losses first; only for a call with `Prefer: details`, and in
    the follow answer"""
    metrics: NotRequired[Known[dict[str, float]]]
    """The last values of all metrics by their names, at most 200; only for a call with `Prefer: details`, like the next
    4 keys"""
    parameters: NotRequired[Known[dict[str, str | float | bool]]]
    """The parameters of the program by their names without dashes, at most 200: numbers, other texts, or true for an
    option without a value; secrets are masked"""
    tags: NotRequired[Known[list[str]]]
    """Tags"""
    note: NotRequired[Known[str]]
    """Note of the users that see the exec"""
    favorite: NotRequired[Known[bool]]
    """true if the exec is a favorite of the calling user"""
    queuePosition: NotRequired[Known[int]]
    """Position of a pending exec in the queue, from 1"""
    expectedStart: NotRequired[Known[Time]]
    """Earliest possible start of a pending exec"""


@described
class Submitted(Exec):
    """A new exec."""

    warning: NotRequired[str]
    """What the submitter should know"""


@described
class Holder(TypedDict):
    """An exec that holds slots."""

    id: str
    """ID of the exec"""
    slots: int
    """Number of slots that the exec holds"""
    elastic: bool
    """Whether the number of workers can change while the exec runs"""
    gives: int
    """Number of slots that the exec can release while it runs"""
    shares: bool
    """Whether other execs use its slots, too"""
    priority: int
    """Priority of the exec"""
    model: str | None
    """Name of the model that the exec serves; null for other execs"""


@described
class Why(TypedDict):
    """Why an exec is pending or parked. For other execs the answer has only `id`, `state` and `message`."""

    id: str
    """ID of the exec"""
    state: State
    """State of the exec"""
    message: NotRequired[Known[str]]
    """A sentence with all facts"""
    advice: NotRequired[Annotated[str, one_of("wait", "change", "ask")]]
    """`wait`, `change` (the submission) or `ask` (an administrator)"""
    starts: NotRequired[str]
    """The event that would start the exec"""
    holders: NotRequired[list[Holder]]
    """The execs that hold slots"""
    reason: NotRequired[str]
    """What the exec lacks, as a code"""
    queuePosition: NotRequired[Known[int]]
    """Position in the queue, from 1"""
    expectedStart: NotRequired[Known[Time]]
    """Earliest possible start"""


@described
class Resized(TypedDict):
    """Numbers of slots of an exec."""

    id: str
    """ID of the exec"""
    before: int
    """Number of slots before the call"""
    slots: int
    """Number of slots now"""


@described
class SlotsChange(TypedDict):
    """A number of slots for a running elastic exec."""

    slots: int | None
    """Number of slots; 0 parks the exec; null returns the decision to the scheduler"""


@described
class Repetition(TypedDict, total=False):
    """What differs when an exec is submitted once more. All keys are optional."""

    name: str
    """Name of the new exec"""
    workers: int
    """Number of workers; the maximum of an elastic exec"""
    arguments: list[str]
    """All words of the program after its name; for a command, the whole command"""
    dataSource: list[Any]
    """Data sources, as `--data-source` takes them"""


@described
class Line(TypedDict):
    """A line of output."""

    task: str
    """The process that wrote the line: task0, task12n-1"""
    stream: Annotated[str, one_of("stdout", "stderr")]
    """The stream of the line"""
    text: str
    """The line without its end"""


@described
class News(TypedDict):
    """An exec and its new output."""

    exec: Exec
    """The exec"""
    events: list[dict[str, Any]]
    """New events: `id`, `time` in epoch seconds, `kind`, and the values of that kind"""
    lines: list[Line]
    """New lines of output"""
    cursor: str
    """Value of `cursor` for the next call"""


@described
class Curve(TypedDict):
    """A metric over the steps of a training."""

    name: str
    """Name of the metric, as the program wrote it"""
    source: Annotated[str, one_of(*SOURCES)]
    """Where the server found the curve"""
    unit: str
    """Unit of the values; empty if unknown"""
    stepUnit: Annotated[str, one_of(*UNITS)]
    """Unit of the steps; `line`: the values are counted, because the program named no step"""
    steps: NotRequired[float]
    """The last step of the training, if the program named it"""
    points: list[list[float | None]]
    """Points in the order of their steps: step, value, and epoch seconds or null"""
    left: NotRequired[int]
    """Number of values that are not finite, and so left out; absent if there are none"""


@described
class Curves(TypedDict):
    """The curves of an exec."""

    curves: list[Curve]
    """The curves, the most trusted source first"""
    cursor: str
    """Value of `since` for the next call"""
    whole: bool
    """Whether the answer has all points; otherwise it has those since the cursor, and a point replaces an earlier one
    of the same step"""


@described
class CodeFile(TypedDict):
    """A submitted file."""

    path: str
    """Path relative to the folder in which the program runs"""
    bytes: NotRequired[int]
    """Size in bytes"""
    sha256: NotRequired[str]
    """Checksum in hexadecimal; absent beyond a total of 256 MiB"""
    text: NotRequired[str]
    """Content of a UTF-8 file of at most 64 KiB; absent beyond a total of 2 MiB"""


@described
class Code(TypedDict):
    """The submitted files of an exec."""

    files: list[CodeFile]
    """The files"""
    complete: bool
    """Whether the list has all files"""


@described
class File(TypedDict):
    """A file that the program wrote."""

    path: str
    """Path relative to RESULT_DIR, or to the folder in which the program runs"""
    bytes: int
    """Size in bytes"""
    modified: str
    """Time of the last change: `YYYY-MM-DDTHH:MM:SS.ffffffZ`"""
    where: Annotated[str, one_of("result", "code")]
    """`code` for a file below the folder in which the program runs, else `result`"""


@described
class Files(TypedDict):
    """The files that the program wrote."""

    files: list[File]
    """The files, ordered by path"""
    complete: bool
    """Whether the list has all files"""


@described
class Submission(TypedDict):
    """What a submission may say besides its files."""

    args: NotRequired[str]
    """The command line; the query parameter `args` has precedence"""
    argv: NotRequired[list[str]]
    """The exact words of the command line"""
    dataSource: NotRequired[list[dict[str, Any]]]
    """Data sources"""
    hardwareSpec: NotRequired[dict[str, Any]]
    """Nodes, devices and memory; options of the command line have precedence"""
    stagedFolder: NotRequired[str]
    """Name of a folder that the server takes over (extension `staged-folder`)"""


@described
class SubmissionForm(TypedDict):
    """A submission as a form."""

    data: NotRequired[str]
    """A JSON object with `args`, `argv`, `dataSource`, `hardwareSpec` and `stagedFolder`"""


@described
class SubmissionParts(SubmissionForm):
    """A submission with files, as parts of a body."""

    file: NotRequired[list[bytes]]
    """Files, or one tar archive"""
