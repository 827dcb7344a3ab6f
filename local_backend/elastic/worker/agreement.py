"""Members compare their states: after epochs, and with `check="strict"` also after each step.

All members compute the same steps from the same sums, so their states are equal to the last bit. If states differ, code
of the script works differently in each worker, and the result depends on the number of workers. The job then ends with
an error that names the first difference. In asynchronous mode states differ by design, and members do not compare them.

Members compare parameters, buffers, optimizers, schedulers, registered objects (`state=`), the values that options
keep, and tensors and arrays of callbacks. Members do not compare other attributes of callbacks. Time stamps, process
ids and paths differ without harm, and a harmful difference also changes a compared value. Members ignore the names in
`local_state=`. After an epoch, members also compare the values that a batch computation can reach and that have changed
since the worker began.

Members compare states by a collective before they report the boundary to the hub. So the engine never saves a state if
this comparison finds a difference, and handles a death during the comparison like a death during a step.
"""

from __future__ import annotations

import fnmatch
import json
import time
import zlib
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from local_backend.elastic import faults
from local_backend.elastic.collective.group import WorkerGroup
from local_backend.elastic.errors import EngineError
from local_backend.elastic.script.generators import is_generator
from local_backend.elastic.script.hooked import Variable, own_attributes
from local_backend.elastic.script.job import TrainingJob
from local_backend.elastic.state.fingerprints import NameOf, leaves, of_tensors, of_text, tensors_in
from local_backend.elastic.state.live import Live
from local_backend.elastic.state.replica import parts_of
from local_backend.elastic.worker.control import ControlThread
from local_backend.elastic.worker.strays import Drift, sentence
from local_backend.elastic.worker.trainer import Trainer

#: Minimum ratio of training time to comparison time. The first and the last comparison do not count.
SHARE = 100
#: Maximum number of characters of a value in a message.
SHOWN = 60

#: Kind of difference → likely cause and remedy.
CAUSES = {
    "rate": (
        "a callback or hook sets the learning rate from a value that differs between workers (time, process id, local "
        "losses); set it from the epoch, or use lr_scheduler="
    ),
    "option": "a callback or hook sets the option differently on each worker; set it to the same value on all workers",
    "scheduler": (
        "the script steps or changes the scheduler in a callback; pass it as lr_scheduler= and let the engine step it"
    ),
    "state": (
        "the object changes differently on each worker; change registered objects only in callbacks and optimizer "
        "hooks, or name the object in local_state= if it does not influence the result"
    ),
    "callback": (
        "the callback keeps a value that differs between workers; name the attribute in local_state= if it does not "
        "influence the result"
    ),
    "stop": "a callback ends training by a value that differs between workers; use early_stopping= or the epoch's logs",
    "frozen": "a callback freezes parameters on some workers only; freeze them on all workers",
    "buffer": (
        "a callback, a hook or a batch of the test set changes the buffer differently on each worker; change it the "
        "same way on all workers, and not in validation"
    ),
    "parameter": (
        "a callback or hook changes the model differently on each worker, for example by time, process id or unseeded "
        "random numbers; change it the same way on all workers"
    ),
    "optimizer": "a callback or hook changes the optimizer differently on each worker; change it the same way on all",
    "carried": "a callback changes values that a training option maintains; remove that change",
}


@dataclass(frozen=True)
class Row:
    """One compared value: its kind (a key of CAUSES), its name, its fingerprint, and its text if the text is short."""

    kind: str
    name: str
    digest: int
    shown: str = ""


@dataclass(frozen=True)
class StateTable:
    """A state as rows. A value comes before the values that it affects, so the first difference is the cause."""

    rows: tuple[Row, ...]

    @property
    def digest(self) -> int:
        """The fingerprint of all rows, a signed 64-bit number."""
        number = of_text("\n".join(f"{row.name}\t{row.digest}" for row in self.rows))
        return number - (1 << 64) if number >> 63 else number

    def to_bytes(self) -> bytes:
        """Return the table as bytes, for `from_bytes`."""
        rows = [[row.kind, row.name, row.digest, row.shown] for row in self.rows]
        return zlib.compress(json.dumps(rows).encode(), 1)

    @classmethod
    def from_bytes(cls, data: bytes) -> StateTable:
        """Return the table that `to_bytes` has encoded."""
        return cls(tuple(Row(*row) for row in json.loads(zlib.decompress(data))))


@dataclass(frozen=True)
class Difference:
    """The first row in which the table at index `place` differs from the first table; `others` more rows differ."""

    place: int
    kind: str
    name: str
    here: str
    there: str
    others: int

    @property
    def what(self) -> str:
        """A clause with the name of the value, both values if they are short, and the number of other differences."""
        values = f" ({self.here} and {self.there})" if self.here and self.there else ""
        more = f"; {self.others} other values differ too" if self.others else ""
        return f"{self.name} differs{values}{more}"


def first_difference(tables: Sequence[StateTable]) -> Difference | None:
    """Return the first difference between a table and the first table, or None if all tables are equal."""
    first = {row.name: row for row in tables[0].rows}
    for place, table in enumerate(tables[1:], 1):
        second = {row.name: row for row in table.rows}
        names = [name for name in {**first, **second} if _digest(first, name) != _digest(second, name)]
        if names:
            row = first.get(names[0]) or second[names[0]]
            here, there = (one[row.name].shown if row.name in one else "absent" for one in (first, second))
            return Difference(place, row.kind, row.name, here, there, len(names) - 1)
    return None


def table_of(job: TrainingJob, callbacks: bool = True) -> StateTable:
    """Return the state of this process. `callbacks`: include the values that callbacks keep. Waits for a GPU."""
    items = list(_items(job, callbacks))
    numbers = iter(of_tensors([value for _, _, value in items if isinstance(value, Tensor)]))
    rows: list[Row] = []
    met: Counter[str] = Counter()
    for kind, name, value in items:
        met[name] += 1
        unique = name if met[name] == 1 else f"{name} ({met[name]})"
        if isinstance(value, Tensor):
            rows.append(Row(kind, unique, next(numbers)))
        else:
            rows.append(Row(kind, unique, of_text(value), value if len(value) <= SHOWN else ""))
    return StateTable(tuple(rows))


def _unlike(members: Sequence[int], applied: int, losses: Sequence[float | None]) -> str:
    """Return the message that members compute different results for the same batch."""
    shown = ", ".join(
        f"{loss!r} in worker {member}" for member, loss in zip(members, losses, strict=True) if loss is not None
    )
    return (
        f"workers compute different results for the same batch in step {applied}, with the same parameters, buffers "
        f"and random numbers (loss {shown}). The model, the loss or the step function uses a value that differs "
        "between workers, such as a counter, a cache, a file or the time. Keep the value in a buffer with "
        "buffers={...}, or change it in a callback (on_step_end)"
    )


def _check_grown(members: Sequence[int], applied: int, tables: Sequence[Mapping[str, str]]) -> None:
    """Raise EngineError if two members have added an item with different values to a table of a data set."""
    known: dict[str, tuple[int, str]] = {}
    for member, table in zip(members, tables, strict=True):
        for path, value in table.items():
            first, there = known.setdefault(path, (member, value))
            if there != value:
                raise EngineError(
                    f"the data sets differ after step {applied}: {path} is {there[:SHOWN]} in worker {first} and "
                    f"{value[:SHOWN]} in worker {member}. Each worker reads different samples, so a data set must not "
                    "number words or classes in reading order. Fill the table in datasets_function. If the table has "
                    "no influence on the result, name it in local_state=[...]"
                )


class Agreement:
    """One member's part in the comparisons. All members of a generation call the methods at the same points."""

    def __init__(self, job: TrainingJob, control: ControlThread, mode: str) -> None:
        self._job = job
        self._control = control
        self._off = mode == "async"
        self._strict = job.recipe.check == "strict"
        #: Duration of the last comparison in seconds, and the time when it ended.
        self._cost = 0.0
        self._since = time.monotonic()
        #: Number of applied steps at the last comparison.
        self._agreed = 0

    def after_step(self, group: WorkerGroup | None, members: Sequence[int], applied: int) -> None:
        """Compare states if `check="strict"`. Raises EngineError if they differ, GroupBroken and Interrupted."""
        if self._strict and not self._off and group is not None and group.size > 1:
            self._compare(group, members, applied, callbacks=True)

    def at_boundary(
        self, group: WorkerGroup | None, members: Sequence[int], applied: int, last: bool, *, trainer: Trainer,
        data: Mapping[str, str],
    ) -> None:
        """Compare the members' results of the common batch, and compare the members' states.

        Members compare states if a member has not compared yet, and after an epoch that is or may be the `last`. After
        any other epoch, members compare states if training has taken at least `SHARE` times as long as a comparison
        since the last one. All members make the same decision. `data`: digests of the data sets.

        Raises EngineError if members differ, GroupBroken and Interrupted."""
        if self._off or group is None or group.size == 1:
            return
        faults.at("agreeing")
        self._control.phase = "waiting"
        times = [int((time.monotonic() - self._since) * 1e6), int(self._cost * 1e6)]
        common = trainer.common[1] if trainer.common is not None and trainer.common[0] == applied else None
        results = [0 if common is None else of_text(repr(common)) >> 1, of_text(repr(sorted(data.items()))) >> 1]
        told = _gather(group, [*times, self._agreed, _stops(self._job), *results], self._device)
        # If the data sets differ, the hub names the difference.
        unlike = len({row[4] for row in told} - {0}) > 1 and len({row[5] for row in told}) == 1
        longest, costs = max(row[0] for row in told), [row[1] for row in told]
        self._agreed = max((row[2] for row in told if row[2] <= applied), default=0)
        ends = last or self._job.recipe.early_stopping is not None or any(row[3] for row in told)
        if unlike or ends or min(costs) == 0 or longest >= SHARE * max(costs):
            # In the last epoch only one worker's callbacks save the user's artifacts, and may change their own state.
            self._compare(group, members, applied, callbacks=not last)
            self._compare_drift(group, members, applied, trainer.drift)
        if unlike:
            raise EngineError(_unlike(members, applied, _told(group, common and common.loss, self._device)))

    @property
    def _device(self) -> torch.device:
        return next(parameter.device for module in self._job.modules for parameter in module.parameters())

    def _compare(self, group: WorkerGroup, members: Sequence[int], applied: int, callbacks: bool) -> None:
        # A large state takes long. In this phase, the driver does not declare a worker hung.
        self._control.phase = "callbacks"
        began = time.monotonic()
        table = table_of(self._job, callbacks)
        self._cost = max(time.monotonic() - began, 1e-6)
        self._control.phase = "waiting"
        digests = [row[0] for row in _gather(group, [table.digest], self._device)]
        if len(set(digests)) > 1:
            raise EngineError(self._explain(group, members, applied, table))
        self._since, self._agreed = time.monotonic(), applied

    def _compare_drift(self, group: WorkerGroup, members: Sequence[int], applied: int, drift: Drift) -> None:
        """Raise EngineError if batches have changed a value differently in two members."""
        self._control.phase = "callbacks"
        began = time.monotonic()
        changed, grown = drift.changed(), drift.grown()
        self._cost += time.monotonic() - began
        self._control.phase = "waiting"
        if not any(row[0] for row in _gather(group, [len(changed) + len(grown)], self._device)):
            return
        told = _told(group, [changed, drift.harmless(), grown], self._device)
        _check_grown(members, applied, [tables for _, _, tables in told])
        harmless = {path for _, paths, _ in told for path in paths}
        # A path that contains a memory address differs in each process.
        paths = sorted({path for found, _, _ in told for path in found if " at 0x" not in path} - harmless)
        values = _told(group, drift.values(paths), self._device)
        for number, path in enumerate(paths):
            known = [(member, found[number]) for member, found in zip(members, values, strict=True) if found[number]]
            other = next(((member, value) for member, value in known if value != known[0][1]), None)
            if other is not None:
                raise EngineError(
                    f"the workers' states differ after step {applied}: {path} differs ({known[0][1][:SHOWN]} and "
                    f"{other[1][:SHOWN]}) between worker {known[0][0]} and worker {other[0]}. {sentence(path)}"
                )

    def _explain(self, group: WorkerGroup, members: Sequence[int], applied: int, table: StateTable) -> str:
        tables = [StateTable.from_bytes(data) for data in _gather_bytes(group, table.to_bytes(), self._device)]
        difference = first_difference(tables)
        assert difference is not None
        since = f"after step {self._agreed}" if self._agreed else "when training began"
        return (
            f"the workers' states differ after step {applied}: {difference.what} between worker {members[0]} and "
            f"worker {members[difference.place]}; they were last equal {since}. "
            f"Likely cause: {CAUSES[difference.kind]}"
        )


#: Kind, name, and tensor or text of a compared value.
Item = tuple[str, str, Tensor | str]


def _items(job: TrainingJob, callbacks: bool) -> Iterator[Item]:
    """Yield all values to compare."""
    live = Live(job)
    names = _names_of(job, live)
    phases = {id(optimizer): name for name, optimizer in job.optimizers.items()}
    optimizers = [
        (optimizer, _of(phases.get(id(optimizer), ""), number)) for number, optimizer in enumerate(live.optimizers)
    ]

    def name_of(item: Any) -> Any:
        return names.get(id(item)) or live.name(item)

    for optimizer, of in optimizers:
        yield from _settings(optimizer, of, name_of)
    yield from _objects(job, callbacks, name_of)
    yield "stop", "stop_training of the model", str(bool(_stops(job)))
    frozen = [names[id(parameter)] for parameter in live.parameters if not parameter.requires_grad]
    yield "frozen", "the set of frozen parameters", ", ".join(frozen) or "none"
    yield from _tensors(live, names, () if callbacks else _names_of_held(job))
    for optimizer, of in optimizers:
        yield from _state_of(optimizer, of, names, name_of)
        yield from _attributes_of(optimizer, of, job, name_of)
    yield from _rows("carried", job.carried, "the state of the training options", name_of)


def _stops(job: TrainingJob) -> int:
    """Return 1 if a callback has requested the end of training after this epoch, else 0."""
    return int(bool(getattr(job.model, "stop_training", False)))


def _settings(optimizer: torch.optim.Optimizer, of: str, name_of: NameOf) -> Iterator[Item]:
    """Yield the learning rates and other options of an optimizer."""
    for i, group in enumerate(optimizer.param_groups):
        for key, value in sorted(group.items()):
            kind, name = ("rate", "learning rate") if key == "lr" else ("option", key)
            if key != "params":
                yield from _rows(kind, value, f"{name} of group {i}{of}", name_of)


def _objects(job: TrainingJob, callbacks: bool, name_of: NameOf) -> Iterator[Item]:
    """Yield schedulers, and the registered objects and callback tensors that `local_state=` does not name."""
    local = job.recipe.local_state
    for phase, scheduler in job.recipe.lr_scheduler.items():
        yield from _rows("scheduler", scheduler, f"scheduler{f' {phase}' if phase else ''}", name_of)
    for name, value in sorted(job.recipe.state.items()):
        for path, leaf in leaves(value, name, name_of):
            if not _is_local(path, local):
                yield "state", f"state {path}", leaf
    name_outside = _outside(job, name_of)
    for callback in job.callbacks if callbacks else ():
        for name, value in sorted(getattr(callback, "__dict__", {}).items()):
            for path, tensor in tensors_in(value, f"{type(callback).__name__}.{name}", name_outside):
                if not _is_local(path, local):
                    yield "callback", f"callback {path}", tensor


def _kept(job: TrainingJob) -> dict[int, Any]:
    """Return id → part that an optimizer, a hook or a callback keeps, without modules and generators."""
    held = (part.content if isinstance(part, Variable) else part for part in job.held)
    return {id(part): part for part in held if not isinstance(part, nn.Module) and not is_generator(part)}


def _outside(job: TrainingJob, name_of: NameOf) -> NameOf:
    """Return a function like `name_of` that gives no name to what `_kept` returns, because its content is compared."""
    kept = _kept(job)
    return lambda item: None if id(item) in kept else name_of(item)


def _state_of(
    optimizer: torch.optim.Optimizer, of: str, names: dict[int, str], name_of: NameOf
) -> Iterator[Item]:
    """Yield the state that an optimizer keeps for each parameter."""
    parts = parts_of(optimizer)
    for parameter, state in parts["state"].items():
        where = names.get(id(parameter), "a parameter") + of
        for key, value in sorted(state.items() if isinstance(state, dict) else ()):
            yield from _rows("optimizer", value, f"optimizer state {key} of {where}", name_of)


def _attributes_of(optimizer: torch.optim.Optimizer, of: str, job: TrainingJob, name_of: NameOf) -> Iterator[Item]:
    """Yield the attributes of an optimizer: plain values, collections, and parts that it keeps."""
    kept, collections = _kept(job), (dict, list, tuple, deque, np.ndarray)
    own = own_attributes(optimizer).items()
    compared = {name: value for name, value in own if id(value) in kept or isinstance(value, collections)}
    attributes = {**parts_of(optimizer)["attributes"], **compared}
    yield from _rows("optimizer", attributes, f"optimizer{of}", _outside(job, name_of))


def _rows(kind: str, value: Any, path: str, name_of: NameOf) -> Iterator[Item]:
    for name, leaf in leaves(value, path, name_of):
        yield kind, name, leaf


def _tensors(live: Live, names: dict[int, str], besides: Collection[int]) -> Iterator[Item]:
    """Yield buffers and parameters, except tensors whose ids are in `besides`."""
    met: set[int] = set(besides)
    for module in live.modules:
        for name, buffer in module._buffers.items():
            if buffer is not None and id(buffer) not in met:
                met.add(id(buffer))
                yield "buffer", f"buffer {names.get(id(buffer), name)}", buffer.detach()
    for parameter in live.parameters:
        if id(parameter) not in besides:
            yield "parameter", f"parameter {names[id(parameter)]}", parameter.detach()


def _names_of(job: TrainingJob, live: Live) -> dict[int, str]:
    """Return id → name of the parameters and buffers, as the script names them."""
    names: dict[int, str] = {}
    for prefix, module in zip(("", "loss_function."), job.modules, strict=False):
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            names.setdefault(id(tensor), prefix + name)
    for key, name in _names_of_held(job).items():
        names.setdefault(key, name)
    for i, parameter in enumerate(live.parameters):
        names.setdefault(id(parameter), f"{i} of the optimizer")
    return names


def _names_of_held(job: TrainingJob) -> dict[int, str]:
    """Return id → name of the parameters and buffers of modules that only hooks refer to."""
    modules = [part for part in job.held if isinstance(part, nn.Module)]
    return {
        id(tensor): f"{type(module).__name__}.{name}"
        for module in modules for name, tensor in [*module.named_parameters(), *module.named_buffers()]
    }


def _of(label: str, number: int) -> str:
    return f" of optimizer {label}" if label else f" of inner optimizer {number}" if number else ""


def _is_local(path: str, local: Sequence[str]) -> bool:
    """Return whether a name in `local` fits the path, a beginning of the path, or an attribute in the path."""
    parts = path.replace("[", ".").replace("]", "").split(".")
    beginnings = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
    return any(name in parts or any(fnmatch.fnmatchcase(one, name) for one in beginnings) for name in local)


def _digest(rows: dict[str, Row], name: str) -> int | None:
    return rows[name].digest if name in rows else None


def _gather(group: WorkerGroup, numbers: list[int], device: torch.device) -> list[list[int]]:
    """Return the `numbers` of all members, in order of rank."""
    mine = torch.tensor(numbers, dtype=torch.int64, device=device)
    told = torch.empty(group.size * len(numbers), dtype=torch.int64, device=device)
    group.all_gather(told, mine)
    return told.view(group.size, len(numbers)).tolist()


def _told(group: WorkerGroup, value: Any, device: torch.device) -> list[Any]:
    """Return the `value` of all members, in order of rank. `value` must be JSON-serializable."""
    return [json.loads(data) for data in _gather_bytes(group, json.dumps(value).encode(), device)]


def _gather_bytes(group: WorkerGroup, data: bytes, device: torch.device) -> list[bytes]:
    """Return the `data` of all members, in order of rank."""
    sizes = [row[0] for row in _gather(group, [len(data)], device)]
    words = list(data) + [0] * (max(sizes) - len(data))
    return [bytes(row[:size]) for row, size in zip(_gather(group, words, device), sizes, strict=True)]
