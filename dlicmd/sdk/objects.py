"""Objects of the contract as Python objects: attributes for the keys that a program needs, and all keys by name.

An attribute is the key of the contract in Python's spelling: `numWorker` is `num_worker`. If a server leaves a key out,
a text is "", a number or truth value is None, and a list is empty. `found["numWorker"]` is the value as the server sent
it, also for keys without an attribute. `found.json` is the whole object.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from dlicmd.contract import states, wire
from dlicmd.contract.reading import at, items, number, words
from dlicmd.sdk.experiment_objects import (
    PlanMistakes,
    RunMember,
    RunOfExperiment,
    SavedDefinition,
    SavedExperiment,
    SavedHardware,
)
from dlicmd.sdk.model_objects import (
    DeployedModel,
    DeployedRevision,
    ModelLoading,
    ModelWhy,
    SavedModel,
    ServingKernel,
    ServingReplica,
    ServingRuntime,
    ServingState,
)
from dlicmd.sdk.records import Key, Record, all_of, texts, truth, whole_number
from dlicmd.sdk.search_objects import Algorithm, Experiment, HyperParameter, MetricRange, Search


def _points(value: Any) -> list[tuple[float, float, float | None]]:
    """Return the points of a curve: step, value, and epoch seconds or None."""
    found = ([number(part) for part in items(point)] for point in items(value))
    return [(step, amount, at) for step, amount, at in (point for point in found if len(point) == 3)
            if step is not None and amount is not None]


def _last(value: Any) -> dict[str, tuple[float, float]]:
    """Return the last values of metrics: name → (value, step)."""
    found = {name: (number(at(one, wire.VALUE)), number(at(one, wire.STEP)))
             for name, one in (value.items() if isinstance(value, Mapping) else ())}
    return {name: (amount, step) for name, (amount, step) in found.items() if amount is not None and step is not None}


def _metrics(value: Any) -> dict[str, float]:
    """Return the values of metrics: name → value."""
    found = {name: number(one) for name, one in (value.items() if isinstance(value, Mapping) else ())}
    return {name: one for name, one in found.items() if one is not None}


def _parameters(value: Any) -> dict[str, str | float | bool]:
    """Return parameters: name → number, text, or True for an option without a value."""
    found = value.items() if isinstance(value, Mapping) else ()
    return {name: one for name, one in found if isinstance(one, str | int | float)}


class Exec(Record):
    """A job, as the contract calls it: an exec. Times are ISO-8601."""

    id = Key(wire.ID, words)
    """Id of the exec, such as `wmla-1` (`local-1` on the local backend)."""
    app_id = Key(wire.APP_ID, words)
    """Id of the exec as an application of the scheduler."""
    submission_id = Key(wire.SUBMISSION_ID, words)
    """Id of the submission that created the exec."""
    args = Key(wire.ARGS, words)
    """Command line of the submission."""
    state = Key(wire.STATE, words)
    """State of the exec, such as `RUNNING`. The final states are `FINISHED`, `KILLED` and `ERROR`."""
    recovering = Key(wire.RECOVERING, truth)
    """Whether the exec lost its driver or all its workers, and new ones are being started."""
    creator = Key(wire.CREATOR, words)
    """User that submitted the exec."""
    app_name = Key(wire.APP_NAME, words)
    """Name that the submission gave to the job."""
    framework = Key(wire.FRAMEWORK, words)
    """Framework of the exec, such as `PyTorch`."""
    elastic = Key(wire.ELASTIC, truth)
    """Whether the number of workers can change while the exec runs."""
    num_worker = Key(wire.NUM_WORKER, whole_number)
    """Number of workers that the submission requested."""
    create_time = Key(wire.CREATE_TIME, words)
    """Time of the submission."""
    start_time = Key(wire.START_TIME, words)
    """Time at which the exec started. "" while the exec is pending."""
    end_time = Key(wire.END_TIME, words)
    """Time at which the exec ended. "" before that."""
    message = Key(wire.MESSAGE, words)
    """One line: why the exec failed, the event that it waits for, or a report of its program."""
    reason = Key(wire.REASON, words)
    """Stable code for `message`, such as `NEVER_SCHEDULABLE` or `OUT_OF_MEMORY`."""
    queue_position = Key(wire.QUEUE_POSITION, whole_number)
    """Position of a pending exec in its queue, from 1. None if the exec is not in a queue."""
    expected_start = Key(wire.EXPECTED_START, words)
    """Earliest possible start of a pending exec. "" if unknown."""
    exit_code = Key(wire.EXIT_CODE, whole_number)
    """Exit code of the program. None before the program has ended."""
    has_result = Key(wire.HAS_RESULT, truth)
    """Whether the exec has a result to fetch. None before the exec has ended."""
    slots = Key(wire.SLOTS, whole_number)
    """Number of slots that a running exec holds now."""
    fixed_slots = Key(wire.FIXED_SLOTS, whole_number)
    """Number of slots that an administrator has fixed. None if the scheduler decides."""
    workers = Key(wire.WORKERS, whole_number)
    """Number of workers that train now."""
    epoch = Key(wire.EPOCH, whole_number)
    """Number of the current epoch, from 1."""
    epochs = Key(wire.EPOCHS, whole_number)
    """Total number of epochs."""
    step = Key(wire.STEP, whole_number)
    """Number of committed steps of the whole job."""
    steps = Key(wire.STEPS, whole_number)
    """Total number of steps."""
    loss = Key(wire.LOSS, number)
    """Last loss that the program reported."""
    accuracy = Key(wire.ACCURACY, number)
    """Last accuracy that the program reported."""
    last_metrics = Key(wire.LAST_METRICS, _last)
    """Last values of at most 8 metrics: name → (value, step), losses first."""
    metrics = Key(wire.ALL_METRICS, _metrics)
    """Last values of all metrics: name → value."""
    parameters = Key(wire.PARAMETERS, _parameters)
    """Parameters of the program: name without dashes → number, text, or True for an option without a value."""
    arguments = Key(wire.ARGUMENTS, texts)
    """Words of the program, with secrets masked."""
    samples_per_second = Key(wire.SAMPLES_PER_SECOND, number)
    """Samples per second of the whole job."""
    seconds_left = Key(wire.SECONDS_LEFT, number)
    """Seconds until the expected end of the training."""
    resizes = Key(wire.RESIZES, whole_number)
    """Number of intended changes of the number of workers."""
    deaths = Key(wire.DEATHS, whole_number)
    """Number of workers that died without ending the job."""
    ready = Key(wire.READY_KERNELS, whole_number)
    """Number of kernels of a service that take requests now. None for other execs."""
    search = Key(wire.SEARCH, words)
    """Name of the search that the exec is an experiment of. "" for other execs."""
    experiment = Key(wire.EXPERIMENT, whole_number)
    """Number of the experiment in its search. None for other execs."""
    tags = Key(wire.TAGS, texts)
    """Tags of the exec."""
    note = Key(wire.NOTE, words)
    """Note of the users that see the exec. "" without one."""
    favorite = Key(wire.FAVORITE, truth)
    """Whether the exec is a favorite of the user of this client."""

    @property
    def has_ended(self) -> bool:
        """Whether the state is final."""
        return states.is_terminal(self.state)

    @property
    def is_over(self) -> bool:
        """Whether a longer wait makes no sense: the exec has ended, or can never be scheduled."""
        return self.has_ended or self.reason == wire.NEVER_SCHEDULABLE


class Execs(list[Exec]):
    """A list of execs.

    Attributes:
        total: Number of execs that the query selects without its limit. For a server that does not count, the length
            of the list.
    """

    def __init__(self, found: Iterable[Exec], total: int) -> None:
        super().__init__(found)
        self.total = total


class Labelled(Record):
    """The labels of an exec."""

    id = Key(wire.ID, words)
    """Id of the exec."""
    tags = Key(wire.TAGS, texts)
    """Tags, in the order of their letters."""
    note = Key(wire.NOTE, words)
    """Note. "" without one."""
    favorite = Key(wire.FAVORITE, truth)
    """Whether the exec is a favorite of the user of this client."""


class SavedView(Record):
    """What a list of execs shows, under a name."""

    name = Key(wire.NAME, words)
    """Name of the view."""
    find = Key(wire.FIND, words)
    """Words that find execs."""
    state = Key(wire.STATE, words)
    """A state or a comma-separated list. "" for all."""
    sort_by = Key(wire.SORT_BY, words)
    """Order, as in the query of `Client.execs`: `field[:asc|desc]`. "" for the newest first."""
    everyone = Key(wire.ALL, truth)
    """Whether the view has the execs of all users, for administrators."""
    columns = Key(wire.COLUMNS, texts)
    """Metrics and parameters, such as `metric.f1` and `param.lr`. None for the usual columns."""


class Curve(Record):
    """A metric of a program over its steps."""

    name = Key(wire.NAME, words)
    """Name of the metric, as the program wrote it, such as `val/loss`."""
    source = Key(wire.SOURCE, words)
    """Where the server found the curve, such as `dlicmd.log`, `tensorboard` or `printed`."""
    unit = Key(wire.UNIT, words)
    """Unit of the values. "" if unknown."""
    step_unit = Key(wire.STEP_UNIT, words)
    """Unit of the steps: `step`, `epoch`, `batch`, or `line`: the program named no step, and the values
    are counted."""
    points = Key(wire.POINTS, _points)
    """Points in the order of their steps: step, value, and epoch seconds or None."""
    left = Key(wire.LEFT, whole_number)
    """Number of values that are not finite, and so left out. None if there are none."""


class Holder(Record):
    """An exec that holds slots: `gives` is the number of slots that it can give to others while it runs."""

    id = Key(wire.ID, words)
    """Id of the exec."""
    slots = Key(wire.SLOTS, whole_number)
    """Number of slots that the exec holds."""
    elastic = Key(wire.ELASTIC, truth)
    """Whether the number of slots can change while the exec runs."""
    priority = Key(wire.PRIORITY, whole_number)
    """Priority of the exec. A higher number comes first."""
    gives = Key(wire.GIVES, whole_number)
    """Number of slots that the exec can give to others while it runs."""
    shares = Key(wire.SHARES, truth)
    """Whether other execs use slots of this exec, too."""


class Why(Record):
    """The reason why an exec is pending, and `advice`: wait, change or ask."""

    id = Key(wire.ID, words)
    """Id of the exec."""
    state = Key(wire.STATE, words)
    """State of the exec."""
    message = Key(wire.MESSAGE, words)
    """Resources that the exec lacks, as a sentence."""
    reason = Key(wire.REASON, words)
    """Stable code for `message`. "" for a server without the extension `why`."""
    starts = Key(wire.STARTS, words)
    """Event that would start the exec, in words."""
    advice = Key(wire.ADVICE, words)
    """`wait`, `change` (the submission) or `ask` (an administrator)."""
    holders = Key(wire.HOLDERS, all_of(Holder))
    """Execs that hold slots."""


class Line(NamedTuple):
    """A line of a program's output, without its newline.

    Attributes:
        text: Text of the line.
        task: Name of the task that wrote the line. "" from a server without the extension `follow`.
        stream: `stdout` or `stderr`. Always `stdout` from a server without the extension `follow`.
        time: Time at which the line was written, as ISO 8601. Only `Client.log_lines` returns it.
    """

    text: str
    task: str = ""
    stream: str = "stdout"
    time: str = ""


class News(NamedTuple):
    """An exec with its output since the previous news.

    Attributes:
        exec: The exec as it is now.
        lines: New lines of output. The list can be empty.
        cursor: Cursor for the next call of `Client.follow`. "" from a server without the extension `follow`.
    """

    exec: Exec
    lines: list[Line]
    cursor: str = ""


class CodeFile(Record):
    """A submitted file with its present content."""

    path = Key(wire.PATH, words)
    """Path relative to the folder in which the program runs."""
    bytes = Key(wire.BYTES, whole_number)
    """Size in bytes."""
    sha256 = Key(wire.SHA256, words)
    """SHA-256 as hexadecimal text. "" for files beyond the limits of the server."""
    text = Key(wire.TEXT, words)
    """Content of a small UTF-8 file. "" for other files."""


class Code(Record):
    """The submitted files of an exec. `complete` is False if the exec has more files."""

    files = Key(wire.FILES, all_of(CodeFile))
    """Submitted files."""
    complete = Key(wire.COMPLETE, truth)
    """Whether `files` has all submitted files."""


class File(Record):
    """A file that the program of an exec wrote."""

    path = Key(wire.PATH, words)
    """Path of the file for `Client.fetch_file`, with slashes: relative to RESULT_DIR, or to the folder in which the
    program runs."""
    bytes = Key(wire.BYTES, whole_number)
    """Size in bytes."""
    modified = Key(wire.MODIFIED, words)
    """Time of the last change."""
    where = Key(wire.WHERE, words)
    """`code` for a file below the folder in which the program runs, else `result`."""


class Files(Record):
    """The files that the program of an exec wrote. `complete` is False if there are more files."""

    files = Key(wire.FILES, all_of(File))
    """Files, ordered by path."""
    complete = Key(wire.COMPLETE, truth)
    """Whether `files` has all files."""


class Framework(Record):
    """A framework for submissions."""

    name = Key(wire.NAME, words)
    """Name for `Client.submit`, such as `PyTorch`."""
    framework_version = Key(wire.FRAMEWORK_VERSION, words)
    """Version of the framework."""
    desc = Key(wire.DESC, texts)
    """Lines of a description."""


class Application(Record):
    """An exec, or a pack of execs, as the engine of the scheduler describes it."""

    id = Key(wire.ID, words)
    """Id of the application. For one exec, this is `Exec.app_id`."""
    name = Key(wire.NAME, words)
    """Name that the submission gave to the job."""
    state = Key(wire.STATE, words)
    """State of the application, such as `RUNNING`."""
    type = Key(wire.TYPE, words)
    """Type of the application, such as `Training`."""
    consumer = Key(wire.CONSUMER, words)
    """Path of the resource plan that the application counts for, such as `/local/training`."""
    submit_user = Key(wire.SUBMIT_USER, words)
    """User that submitted the application."""
    priority = Key(wire.PRIORITY, whole_number)
    """Priority of the application. A higher number comes first."""
    task12n_num = Key(wire.TASK12N_NUM, whole_number)
    """Number of workers that the submission requested."""
    pack_id = Key(wire.PACK_ID, words)
    """Id of the pack, for execs that share a device. "" without a pack."""
    message = Key(wire.MESSAGE, words)
    """Reason why the application is pending, as a sentence."""
    reason = Key(wire.REASON, words)
    """Stable code for `message`."""

    @property
    def is_over(self) -> bool:
        """Whether a longer wait makes no sense, as `Exec.is_over`."""
        return states.is_terminal(self.state) or self.reason == wire.NEVER_SCHEDULABLE


class StopOutcome(Record):
    """The outcome of stopping one application."""

    id = Key(wire.ID, words)
    """Id of the application, as given."""
    stopped = Key(wire.STOPPED_NOW, truth)
    """Whether the application was active and will be stopped."""
    state = Key(wire.STATE, words)
    """State of the application. "" if no application has this id."""
    message = Key(wire.MESSAGE, words)
    """The outcome as a sentence."""


class SlotHolder(Record):
    """An exec on a slot."""

    id = Key(wire.ID, words)
    """Id of the exec. "" if the caller may not see the exec."""
    user = Key(wire.USER, words)
    """User that submitted the exec. "" if the caller may not see the exec."""
    consumer = Key(wire.CONSUMER, words)
    """Path of the resource plan that the exec counts for. "" if the caller may not see the exec."""
    share = Key(wire.SHARE, number)
    """Part of the slot that the exec uses, from 0 to 1."""


class Slot(Record):
    """A device, or a part of one, that the scheduler assigns."""

    id = Key(wire.ID, words)
    """Id of the slot."""
    kind = Key(wire.KIND, words)
    """`gpu` or `cpu` for a whole device, or the profile of a part of a GPU."""
    profile = Key(wire.PROFILE, words)
    """Profile of a part of a GPU. "" for a whole device."""
    state = Key(wire.STATE, words)
    """`free`, `used`, `leaving` (its execs are about to release the slot) or `drained` (out of service)."""
    utilisation = Key(wire.UTILISATION, number)
    """Measured use of the slot, from 0 to 1: that of the GPU; of a CPU slot, the CPU load of its execs since the call
    before. None if unknown."""
    holders = Key(wire.HOLDERS, all_of(SlotHolder))
    """Execs on the slot. The list is empty for a free slot."""


class PendingExec(Record):
    """A pending exec in the queue."""

    id = Key(wire.ID, words)
    """Id of the exec."""
    user = Key(wire.USER, words)
    """User that submitted the exec."""
    app_name = Key(wire.APP_NAME, words)
    """Name that the submission gave to the job."""
    consumer = Key(wire.CONSUMER, words)
    """Path of the resource plan that the exec counts for."""
    priority = Key(wire.PRIORITY, whole_number)
    """Priority of the exec. A higher number comes first."""
    slots = Key(wire.SLOTS, number)
    """Number of slots that the exec needs to start, such as 0.5 for a half of a shared slot."""
    message = Key(wire.MESSAGE, words)
    """Resources that the exec lacks, as a sentence."""
    reason = Key(wire.REASON, words)
    """Stable code for `message`."""
    queue_position = Key(wire.QUEUE_POSITION, whole_number)
    """Position of the exec in its queue, from 1. None if unknown."""
    expected_start = Key(wire.EXPECTED_START, words)
    """Earliest possible start. "" if unknown."""


class SlotView(Record):
    """All slots, and the running and pending execs."""

    slots = Key(wire.SLOTS, all_of(Slot))
    """All slots."""
    running = Key(wire.RUNNING, all_of(Exec))
    """Running execs, with a part of their keys."""
    queue = Key(wire.QUEUE, all_of(PendingExec))
    """Pending execs in the order of the queue."""


class Holding(Record):
    """The slots that one user, consumer, exec or slot held."""

    key = Key(wire.KEY, words)
    """Name of the user or consumer, or id of the exec or slot. "" in a list of single holdings."""
    slot_seconds = Key(wire.SLOT_SECONDS, number)
    """Number of slots times seconds. None in a list of single holdings."""


class Holdings(Record):
    """The use of slots in an interval."""

    by = Key(wire.BY, words)
    """Meaning of `Holding.key`: `consumer`, `user`, `exec` or `slot`; or `holding` for a list of single holdings."""
    rows = Key(wire.ROWS, all_of(Holding))
    """Holdings, largest first. Single holdings are sorted by their start."""


class StoredData(Record):
    """Files that `Client.upload_data` has stored."""

    path = Key(wire.PATH, words)
    """Their folder, as data sources name it: relative to DLI_DATA_FS, or to the volume."""
    files = Key(wire.FILES, whole_number)
    """Number of files."""
    bytes = Key(wire.BYTES, whole_number)
    """Size in bytes."""


class Preview(Record):
    """The contents of one data source."""

    ok = Key(wire.OK, truth)
    """Whether a job could read the data."""
    message = Key(wire.MESSAGE, words)
    """Reason why a job could not read the data."""
    name = Key(wire.NAME, words)
    """Name of the data source."""
    kind = Key(wire.KIND, words)
    """Kind of the connection, such as `s3`. "" for data without a connection."""


class Plan(Record):
    """A resource plan, with the plans below it."""

    path = Key(wire.PATH, words)
    """Path of the plan, such as `/local/research`. Only the answer of the local backend to `Client.plan` has it."""

    @property
    def id(self) -> str:
        """Name of the plan."""
        return words(self.json.get(wire.ID)) or words(self.json.get(wire.NAME))

    @property
    def children(self) -> list[Plan]:
        """The plans directly below this plan."""
        return all_of(Plan)(self.json.get(wire.CHILDREN) or self.json.get(wire.PLANS))


#: All classes, for the documentation and its test.
RECORDS: tuple[type[Record], ...] = (
    Exec, Labelled, SavedView, Why, Holder, Code, CodeFile, Files, File, Framework, Application, StopOutcome, SlotView,
    Slot, SlotHolder, PendingExec, Holdings, Holding, Preview, StoredData, Plan, Search, Experiment, HyperParameter,
    MetricRange, Algorithm, DeployedModel, DeployedRevision, ServingState, ServingReplica, ServingKernel,
    ServingRuntime, SavedModel, ModelLoading, ModelWhy, SavedDefinition, SavedHardware, SavedExperiment,
    RunOfExperiment, RunMember, PlanMistakes,
)
