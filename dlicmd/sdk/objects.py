"""Objects of the contract as Python objects: attributes for the keys that a program needs, and all keys by name.

An attribute is the key of the contract in Python's spelling: `numWorker` is `num_worker`. If a server leaves a key out,
a text is "", a number or truth value is None, and a list is empty. `found["numWorker"]` is the value as the server sent
it, also for keys without an attribute. `found.json` is the whole object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar, overload

from dlicmd.contract import states, wire
from dlicmd.contract.reading import items, number, objects, words

T = TypeVar("T")
R = TypeVar("R", bound="Record")


class Record(Mapping[str, Any]):
    """An object as a server sent it: a mapping of keys to JSON values."""

    def __init__(self, json: dict[str, Any]) -> None:
        self.json = json

    def __getitem__(self, key: str) -> Any:
        return self.json[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.json)

    def __len__(self) -> int:
        return len(self.json)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.json!r})"


class Key(Generic[T]):
    """The attribute for a key of a Record. `read` converts any JSON value, and never raises."""

    def __init__(self, name: str, read: Callable[[Any], T]) -> None:
        self.name, self.read = name, read

    @overload
    def __get__(self, record: None, owner: type[Record]) -> Key[T]: ...

    @overload
    def __get__(self, record: Record, owner: type[Record]) -> T: ...

    def __get__(self, record: Record | None, owner: type[Record]) -> T | Key[T]:
        return self if record is None else self.read(record.json.get(self.name))


def _whole(value: Any) -> int | None:
    found = number(value)
    return None if found is None else int(found)


def _truth(value: Any) -> bool | None:
    """Return a truth value. Some servers send it as text."""
    return {"true": True, "false": False}.get(str(value).lower())


def _texts(value: Any) -> list[str]:
    return [words(item) for item in items(value)]


def _all(kind: type[R]) -> Callable[[Any], list[R]]:
    return lambda value: [kind(one) for one in objects(value)]


class Exec(Record):
    """A job, as the contract calls it: an exec. Times are ISO-8601."""

    id = Key(wire.ID, words)
    app_id = Key(wire.APP_ID, words)
    submission_id = Key(wire.SUBMISSION_ID, words)
    args = Key(wire.ARGS, words)
    state = Key(wire.STATE, words)
    creator = Key(wire.CREATOR, words)
    app_name = Key(wire.APP_NAME, words)
    framework = Key(wire.FRAMEWORK, words)
    elastic = Key(wire.ELASTIC, _truth)
    num_worker = Key(wire.NUM_WORKER, _whole)
    create_time = Key(wire.CREATE_TIME, words)
    start_time = Key(wire.START_TIME, words)
    end_time = Key(wire.END_TIME, words)
    message = Key(wire.MESSAGE, words)
    reason = Key(wire.REASON, words)
    queue_position = Key(wire.QUEUE_POSITION, _whole)
    expected_start = Key(wire.EXPECTED_START, words)
    exit_code = Key(wire.EXIT_CODE, _whole)
    has_result = Key(wire.HAS_RESULT, _truth)
    slots = Key(wire.SLOTS, _whole)
    fixed_slots = Key(wire.FIXED_SLOTS, _whole)
    workers = Key(wire.WORKERS, _whole)
    epoch = Key(wire.EPOCH, _whole)
    epochs = Key(wire.EPOCHS, _whole)
    step = Key(wire.STEP, _whole)
    steps = Key(wire.STEPS, _whole)
    loss = Key(wire.LOSS, number)
    accuracy = Key(wire.ACCURACY, number)
    samples_per_second = Key(wire.SAMPLES_PER_SECOND, number)
    seconds_left = Key(wire.SECONDS_LEFT, number)
    resizes = Key(wire.RESIZES, _whole)
    deaths = Key(wire.DEATHS, _whole)

    @property
    def has_ended(self) -> bool:
        """Whether the state is final."""
        return states.is_terminal(self.state)

    @property
    def is_over(self) -> bool:
        """Whether a longer wait makes no sense: the exec has ended, or can never be scheduled."""
        return self.has_ended or self.reason == wire.NEVER_SCHEDULABLE


class Holder(Record):
    """An exec that holds slots: `gives` is the number of slots that it can give to others while it runs."""

    id = Key(wire.ID, words)
    slots = Key(wire.SLOTS, _whole)
    elastic = Key(wire.ELASTIC, _truth)
    priority = Key(wire.PRIORITY, _whole)
    gives = Key(wire.GIVES, _whole)
    shares = Key(wire.SHARES, _truth)


class Why(Record):
    """The reason why an exec is pending, and `advice`: wait, change or ask."""

    id = Key(wire.ID, words)
    state = Key(wire.STATE, words)
    message = Key(wire.MESSAGE, words)
    reason = Key(wire.REASON, words)
    starts = Key(wire.STARTS, words)
    advice = Key(wire.ADVICE, words)
    holders = Key(wire.HOLDERS, _all(Holder))


class Line(NamedTuple):
    """A line of a program's output, without its newline. `stream` is stdout or stderr."""

    text: str
    task: str = ""
    stream: str = "stdout"


class News(NamedTuple):
    """An exec as it is now, its output since the last news, and the cursor for the next news."""

    exec: Exec
    lines: list[Line]
    cursor: str = ""


class CodeFile(Record):
    """A submitted file. `bytes` is its size; `sha256` and `text` are given for small files."""

    path = Key(wire.PATH, words)
    bytes = Key(wire.BYTES, _whole)
    sha256 = Key(wire.SHA256, words)
    text = Key(wire.TEXT, words)


class Code(Record):
    """The submitted files of an exec. `complete` is False if the exec has more files."""

    files = Key(wire.FILES, _all(CodeFile))
    complete = Key(wire.COMPLETE, _truth)


class Framework(Record):
    """A framework for submissions. `desc` is a list of lines."""

    name = Key(wire.NAME, words)
    framework_version = Key(wire.FRAMEWORK_VERSION, words)
    desc = Key(wire.DESC, _texts)


class Application(Record):
    """A job as the engine of the scheduler sees it."""

    id = Key(wire.ID, words)
    name = Key(wire.NAME, words)
    state = Key(wire.STATE, words)
    type = Key(wire.TYPE, words)
    consumer = Key(wire.CONSUMER, words)
    submit_user = Key(wire.SUBMIT_USER, words)
    priority = Key(wire.PRIORITY, _whole)
    task12n_num = Key(wire.TASK12N_NUM, _whole)
    pack_id = Key(wire.PACK_ID, words)
    message = Key(wire.MESSAGE, words)
    reason = Key(wire.REASON, words)

    @property
    def is_over(self) -> bool:
        """Whether a longer wait makes no sense, see Exec."""
        return states.is_terminal(self.state) or self.reason == wire.NEVER_SCHEDULABLE


class StopOutcome(Record):
    """The outcome of stopping one application. `state` is "" if no application has this id."""

    id = Key(wire.ID, words)
    stopped = Key(wire.STOPPED_NOW, _truth)
    state = Key(wire.STATE, words)
    message = Key(wire.MESSAGE, words)


class SlotHolder(Record):
    """An exec on a slot. `share` is its part of the slot, from 0 to 1."""

    id = Key(wire.ID, words)
    user = Key(wire.USER, words)
    consumer = Key(wire.CONSUMER, words)
    share = Key(wire.SHARE, number)


class Slot(Record):
    """A device, or a part of one, that the scheduler assigns. `utilisation` is from 0 to 1."""

    id = Key(wire.ID, words)
    kind = Key(wire.KIND, words)
    profile = Key(wire.PROFILE, words)
    state = Key(wire.STATE, words)
    utilisation = Key(wire.UTILISATION, number)
    holders = Key(wire.HOLDERS, _all(SlotHolder))


class SlotView(Record):
    """All slots, and the running and pending execs."""

    slots = Key(wire.SLOTS, _all(Slot))
    running = Key(wire.RUNNING, _all(Exec))
    queue = Key(wire.QUEUE, _all(Exec))


class Holding(Record):
    """How long slots were held, in seconds times slots. `key` is the user, consumer, exec or slot."""

    key = Key(wire.KEY, words)
    slot_seconds = Key(wire.SLOT_SECONDS, number)


class Holdings(Record):
    """The use of slots in an interval."""

    by = Key(wire.BY, words)
    rows = Key(wire.ROWS, _all(Holding))


class Preview(Record):
    """The contents of one data source. If `ok` is False, `message` says why."""

    ok = Key(wire.OK, _truth)
    message = Key(wire.MESSAGE, words)
    name = Key(wire.NAME, words)
    kind = Key(wire.KIND, words)


class Plan(Record):
    """A resource plan, with the plans below it."""

    id = Key(wire.ID, words)

    @property
    def children(self) -> list[Plan]:
        """The plans directly below this one."""
        return _all(Plan)(self.json.get(wire.CHILDREN))


class Experiment(Record):
    """One trial of a search."""

    id = Key(wire.ID, words)
    app_id = Key(wire.APP_ID, words)
    state = Key(wire.STATE, words)
    metric_val = Key(wire.METRIC_VAL, number)
    start_time = Key(wire.START_TIME, words)
    end_time = Key(wire.END_TIME, words)


class Search(Record):
    """A search for hyper-parameters."""

    hpo_name = Key(wire.SEARCH_NAME, words)
    state = Key(wire.STATE, words)
    creator = Key(wire.CREATOR, words)
    experiments = Key(wire.EXPERIMENTS, _all(Experiment))


class Algorithm(Record):
    """An algorithm of searches."""

    name = Key(wire.NAME, words)
    type = Key(wire.TYPE, words)
    remote_exec = Key(wire.REMOTE_EXEC, _truth)


#: All classes, for the documentation and its test.
RECORDS: tuple[type[Record], ...] = (
    Exec, Why, Holder, Code, CodeFile, Framework, Application, StopOutcome, SlotView, Slot,
    SlotHolder, Holdings, Holding, Preview, Plan, Search, Experiment, Algorithm,
)
