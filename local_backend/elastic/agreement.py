"""Members compare their states: after each epoch, or after each step with `check="strict"`.

All members compute the same steps from the same sums, so their states are equal to the last bit. If they differ, code
of the script works differently in each worker, and the result depends on the number of workers: the job ends with an
error that names the first difference. In asynchronous mode states differ by design, and members do not compare them.

Members compare parameters, buffers, optimizers, schedulers, registered objects (`state=`), the values that options
keep, and tensors and arrays of callbacks. They do not compare other attributes of callbacks: time stamps, process ids
and paths differ without harm, and a harmful one changes a value that is compared. Names in `local_state=` are left out.
After an epoch they also compare the values that computing a batch can reach and that have changed since they began.

Members compare among themselves, by a collective, before they report the boundary to the hub. So a state on which they
disagree is never saved, and a death during the comparison is handled like one during a step.
"""

from __future__ import annotations

import fnmatch
import json
import time
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from local_backend.elastic import faults
from local_backend.elastic.control import Control
from local_backend.elastic.errors import EngineError
from local_backend.elastic.fingerprints import NameOf, leaves, of_tensors, of_text, tensors_in
from local_backend.elastic.group import Group
from local_backend.elastic.hooked import Variable
from local_backend.elastic.job import Job
from local_backend.elastic.live import Live
from local_backend.elastic.replica import parts_of
from local_backend.elastic.strays import Drift, sentence
from local_backend.elastic.training import Trainer

#: Training takes at least so many times as long as the comparisons in it, the first and the last one aside.
SHARE = 100
#: Longest text of a value in a message.
SHOWN = 60

#: Kind of what differs → why it may be so, and what to do.
CAUSES = {
    "rate": (
        "a callback or hook sets it from a value that only one worker has (time, process id, its own losses); set it "
        "from the epoch, or use lr_scheduler="
    ),
    "option": "a callback or hook sets it to another value on each worker; set it to the same value on all workers",
    "scheduler": (
        "the script steps or changes the scheduler in a callback; pass it as lr_scheduler= and let the engine step it"
    ),
    "state": (
        "it changes differently on each worker; change registered objects only in callbacks and optimizer hooks, or "
        "name it in local_state= if it does not influence the result"
    ),
    "callback": (
        "the callback keeps a value that only this worker has; name the attribute in local_state= if it does not "
        "influence the result"
    ),
    "stop": "a callback ends training by a value that only one worker has; use early_stopping= or the epoch's logs",
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
    "carried": "a callback changes values that an option of the training keeps; remove that change",
}


@dataclass(frozen=True)
class Row:
    """One thing that is compared: its kind (of CAUSES), its name, a fingerprint, and its value where that is short."""

    kind: str
    name: str
    digest: int
    shown: str = ""


@dataclass(frozen=True)
class Table:
    """A state, row by row; causes come before what they have effects on."""

    rows: tuple[Row, ...]

    @property
    def digest(self) -> int:
        """One fingerprint of all, a signed number of 64 bits."""
        number = of_text("\n".join(f"{row.name}\t{row.digest}" for row in self.rows))
        return number - (1 << 64) if number >> 63 else number

    def to_bytes(self) -> bytes:
        """The table as bytes, for `from_bytes`."""
        rows = [[row.kind, row.name, row.digest, row.shown] for row in self.rows]
        return zlib.compress(json.dumps(rows).encode(), 1)

    @classmethod
    def from_bytes(cls, data: bytes) -> Table:
        """Inverse of `to_bytes`."""
        return cls(tuple(Row(*row) for row in json.loads(zlib.decompress(data))))


@dataclass(frozen=True)
class Difference:
    """The first row in which a table differs from the first one, by the place of the table; and how many more do."""

    place: int
    kind: str
    name: str
    here: str
    there: str
    others: int

    @property
    def what(self) -> str:
        """What differs, with the values where they are short, and in how many other things."""
        values = f" ({self.here} and {self.there})" if self.here and self.there else ""
        more = f", and so do {self.others} other values" if self.others else ""
        return f"{self.name} differs{values}{more}"


def first_difference(tables: Sequence[Table]) -> Difference | None:
    """Where a table differs from the first one; None when all are alike."""
    first = {row.name: row for row in tables[0].rows}
    for place, table in enumerate(tables[1:], 1):
        second = {row.name: row for row in table.rows}
        names = [name for name in {**first, **second} if _digest(first, name) != _digest(second, name)]
        if names:
            row = first.get(names[0]) or second[names[0]]
            here, there = (one[row.name].shown if row.name in one else "absent" for one in (first, second))
            return Difference(place, row.kind, row.name, here, there, len(names) - 1)
    return None


def table_of(job: Job, callbacks: bool = True) -> Table:
    """The state of this process; `callbacks`: with what these keep. Waits for a GPU."""
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
    return Table(tuple(rows))


def _unlike(members: Sequence[int], applied: int, losses: Sequence[float | None]) -> str:
    """Say that members compute different results for the same batch."""
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
    """Raise EngineError for an item that two members have put into a table of a data set with different values."""
    known: dict[str, tuple[int, str]] = {}
    for member, table in zip(members, tables, strict=True):
        for path, value in table.items():
            first, there = known.setdefault(path, (member, value))
            if there != value:
                raise EngineError(
                    f"the data sets differ after step {applied}: {path} is {there[:SHOWN]} in worker {first} and "
                    f"{value[:SHOWN]} in worker {member}. Each worker reads other samples, so a data set must not "
                    "number words or classes in the order in which it reads them. Fill the table in datasets_function. "
                    "If the table has no influence on the result, name it in local_state=[...]"
                )


class Agreement:
    """A member's side of the comparisons. All members of a generation call it at the same instants."""

    def __init__(self, job: Job, control: Control, mode: str) -> None:
        self._job = job
        self._control = control
        self._off = mode == "async"
        self._strict = job.recipe.check == "strict"
        #: Seconds that the last comparison took, and when it ended.
        self._cost = 0.0
        self._since = time.monotonic()
        #: Applied steps at the last comparison.
        self._agreed = 0

    def after_step(self, group: Group | None, members: Sequence[int], applied: int) -> None:
        """Compare, if that is wanted after each step. Raises EngineError, GroupBroken and Interrupted."""
        if self._strict and not self._off and group is not None and group.size > 1:
            self._compare(group, members, applied, callbacks=True)

    def at_boundary(
        self, group: Group | None, members: Sequence[int], applied: int, last: bool, *, trainer: Trainer,
        data: Mapping[str, str],
    ) -> None:
        """Compare the results of the batch that all members have computed, and compare the states of members.

        Members compare states after the first epoch, and after an epoch that is or may be the `last`. After another
        epoch they do so if training has since taken `SHARE` times as long as a comparison. All members decide the same.
        `data`: digests of the data sets.

        Raises EngineError, GroupBroken and Interrupted."""
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
            # In the last epoch one worker's callbacks save what the user wants to keep, and may note it.
            self._compare(group, members, applied, callbacks=not last)
            self._compare_drift(group, members, applied, trainer.drift)
        if unlike:
            raise EngineError(_unlike(members, applied, _told(group, common and common.loss, self._device)))

    @property
    def _device(self) -> torch.device:
        return next(parameter.device for module in self._job.modules for parameter in module.parameters())

    def _compare(self, group: Group, members: Sequence[int], applied: int, callbacks: bool) -> None:
        # Large states take long: nobody is blamed for it.
        self._control.phase = "callbacks"
        began = time.monotonic()
        table = table_of(self._job, callbacks)
        self._cost = max(time.monotonic() - began, 1e-6)
        self._control.phase = "waiting"
        digests = [row[0] for row in _gather(group, [table.digest], self._device)]
        if len(set(digests)) > 1:
            raise EngineError(self._explain(group, members, applied, table))
        self._since, self._agreed = time.monotonic(), applied

    def _compare_drift(self, group: Group, members: Sequence[int], applied: int, drift: Drift) -> None:
        """Raise EngineError for a value that batches have changed differently in two members."""
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
        # A path with an address differs in each process.
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

    def _explain(self, group: Group, members: Sequence[int], applied: int, table: Table) -> str:
        tables = [Table.from_bytes(data) for data in _gather_bytes(group, table.to_bytes(), self._device)]
        difference = first_difference(tables)
        assert difference is not None
        since = f"after step {self._agreed}" if self._agreed else "when training began"
        return (
            f"the workers' states differ after step {applied}: {difference.what} between worker {members[0]} and "
            f"worker {members[difference.place]}; they were last equal {since}. "
            f"Likely cause: {CAUSES[difference.kind]}"
        )


#: Kind, name, and tensor or text of something that is compared.
Item = tuple[str, str, Tensor | str]


def _items(job: Job, callbacks: bool) -> Iterator[Item]:
    """All that is compared."""
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
    yield from _rows("carried", job.carried, "what options keep", name_of)


def _stops(job: Job) -> int:
    """1 when a callback has said that training ends with this epoch, else 0."""
    return int(bool(getattr(job.model, "stop_training", False)))


def _settings(optimizer: torch.optim.Optimizer, of: str, name_of: NameOf) -> Iterator[Item]:
    """Learning rates and other options."""
    for i, group in enumerate(optimizer.param_groups):
        for key, value in sorted(group.items()):
            kind, name = ("rate", "learning rate") if key == "lr" else ("option", key)
            if key != "params":
                yield from _rows(kind, value, f"{name} of group {i}{of}", name_of)


def _objects(job: Job, callbacks: bool, name_of: NameOf) -> Iterator[Item]:
    """Schedulers, registered objects, and the tensors of callbacks, without what workers may change by themselves."""
    local = job.recipe.local_state
    for phase, scheduler in job.recipe.lr_scheduler.items():
        yield from _rows("scheduler", scheduler, f"scheduler{f' {phase}' if phase else ''}", name_of)
    for name, value in sorted(job.recipe.state.items()):
        for path, leaf in leaves(value, name, name_of):
            if not _is_local(path, local):
                yield "state", f"state {path}", leaf
    kept = {id(part.content if isinstance(part, Variable) else part) for part in job.hooked or ()}

    def name_outside(item: Any) -> Any:
        return None if id(item) in kept and not isinstance(item, nn.Module) else name_of(item)

    for callback in job.callbacks if callbacks else ():
        for name, value in sorted(getattr(callback, "__dict__", {}).items()):
            for path, tensor in tensors_in(value, f"{type(callback).__name__}.{name}", name_outside):
                if not _is_local(path, local):
                    yield "callback", f"callback {path}", tensor


def _state_of(
    optimizer: torch.optim.Optimizer, of: str, names: dict[int, str], name_of: NameOf
) -> Iterator[Item]:
    """What an optimizer keeps for each parameter, and its own attributes."""
    parts = parts_of(optimizer)
    for parameter, state in parts["state"].items():
        where = names.get(id(parameter), "a parameter") + of
        for key, value in sorted(state.items() if isinstance(state, dict) else ()):
            yield from _rows("optimizer", value, f"optimizer state {key} of {where}", name_of)
    yield from _rows("optimizer", parts["attributes"], f"optimizer{of}", name_of)


def _rows(kind: str, value: Any, path: str, name_of: NameOf) -> Iterator[Item]:
    for name, leaf in leaves(value, path, name_of):
        yield kind, name, leaf


def _tensors(live: Live, names: dict[int, str], besides: Collection[int]) -> Iterator[Item]:
    """Buffers and parameters, without those with these ids."""
    met: set[int] = set(besides)
    for module in live.modules:
        for name, buffer in module._buffers.items():
            if buffer is not None and id(buffer) not in met:
                met.add(id(buffer))
                yield "buffer", f"buffer {names.get(id(buffer), name)}", buffer.detach()
    for parameter in live.parameters:
        if id(parameter) not in besides:
            yield "parameter", f"parameter {names[id(parameter)]}", parameter.detach()


def _names_of(job: Job, live: Live) -> dict[int, str]:
    """The paths of parameters and buffers by which a script knows them."""
    names: dict[int, str] = {}
    for prefix, module in zip(("", "loss_function."), job.modules, strict=False):
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            names.setdefault(id(tensor), prefix + name)
    for key, name in _names_of_held(job).items():
        names.setdefault(key, name)
    for i, parameter in enumerate(live.parameters):
        names.setdefault(id(parameter), f"{i} of the optimizer")
    return names


def _names_of_held(job: Job) -> dict[int, str]:
    """Names of the parameters and buffers of modules that only hooks refer to."""
    modules = [part for part in job.hooked or () if isinstance(part, nn.Module)]
    return {
        id(tensor): f"{type(module).__name__}.{name}"
        for module in modules for name, tensor in [*module.named_parameters(), *module.named_buffers()]
    }


def _of(label: str, number: int) -> str:
    return f" of optimizer {label}" if label else f" of inner optimizer {number}" if number else ""


def _is_local(path: str, local: Sequence[str]) -> bool:
    """Whether the script says that workers may differ in it: by its path, the beginning of it, or the attribute."""
    parts = path.replace("[", ".").replace("]", "").split(".")
    beginnings = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
    return any(name in parts or any(fnmatch.fnmatchcase(one, name) for one in beginnings) for name in local)


def _digest(rows: dict[str, Row], name: str) -> int | None:
    return rows[name].digest if name in rows else None


def _gather(group: Group, numbers: list[int], device: torch.device) -> list[list[int]]:
    """These numbers of all members, in order of rank."""
    mine = torch.tensor(numbers, dtype=torch.int64, device=device)
    told = torch.empty(group.size * len(numbers), dtype=torch.int64, device=device)
    group.all_gather(told, mine)
    return told.view(group.size, len(numbers)).tolist()


def _told(group: Group, value: Any, device: torch.device) -> list[Any]:
    """These values of all members, in order of rank; they must be fit for JSON."""
    return [json.loads(data) for data in _gather_bytes(group, json.dumps(value).encode(), device)]


def _gather_bytes(group: Group, data: bytes, device: torch.device) -> list[bytes]:
    """These bytes of all members, in order of rank."""
    sizes = [row[0] for row in _gather(group, [len(data)], device)]
    words = list(data) + [0] * (max(sizes) - len(data))
    return [bytes(row[:size]) for row, size in zip(_gather(group, words, device), sizes, strict=True)]
