"""State that computing a batch leaves in the user's objects, and that the engine neither sums nor copies.

Examples are a counter in `forward`, a list that a step function appends to, and a queue in an attribute. Each worker
would have its own, and the result would depend on the number of workers. The engine scans what the model, the loss and
the step function can reach, before and after a batch. If something has changed, the engine computes the batch once
more. A value that is then equal to the one after the first time is harmless: the batch only leaves it behind, as it
leaves activations. The engine refuses all other changes. The scan also looks into objects that show no attributes:
caches of functions, generators, iterators, slots and references.
"""

from __future__ import annotations

import functools
import gc
import itertools
import logging
import operator
import queue
import time
import weakref
import zlib
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from types import AsyncGeneratorType, CoroutineType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from local_backend.elastic.errors import EngineError
from local_backend.elastic.script import main_module
from local_backend.elastic.script.generators import is_generator
from local_backend.elastic.script.hooked import own_attributes
from local_backend.elastic.script.job import TrainingJob, with_wrapped
from local_backend.elastic.script.user_code import is_user_file, is_user_module
from local_backend.elastic.script.whole import accumulates, by_name

#: Prefix of the path of a value in the cache of a function. A batch may add such values.
CACHED = "the cache of "
#: Most characters of an argument in a path.
SHOWN = 60


def inside(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield paths and values inside `value`. A text describes a state that has no other value."""
    if isinstance(value, functools._lru_cache_wrapper):
        yield from _of_cache(value)
    elif isinstance(value, (GeneratorType, CoroutineType, AsyncGeneratorType)):
        yield from _of_generator(path, value)
    elif isinstance(value, weakref.ref):
        yield path, value()
    elif isinstance(value, ContextVar):
        yield path, value.get(None)
    elif isinstance(value, itertools.count):
        yield path, repr(value)
    elif isinstance(value, (array, bytearray)):
        yield path, f"{len(value)} items, {zlib.crc32(value)}"
    elif isinstance(value, queue.SimpleQueue):
        yield f"len({path})", value.qsize()
    elif isinstance(value, Iterator) and type(value).__module__ == "builtins":
        yield path, f"{operator.length_hint(value, -1)} items left"
    yield from _of_slots(path, value)


def _of_cache(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield the results in the cache of `functools.lru_cache`. CPython shows them to its garbage collector only."""
    code = getattr(function.__wrapped__, "__code__", None)
    if code is None or not is_user_file(code.co_filename):
        return
    found = gc.get_referents(function)
    # A cache of limited size is a chain of links. The referents of a link are its type, its key and its result.
    results = [
        (key, result) for kind, key, result in zip(found, found[1:], found[2:], strict=False)
        if isinstance(kind, type) and kind.__name__ == _LINK
    ]
    for part in found:
        if type(part) is dict and part is not vars(function):
            results += [(key, result) for key, result in part.items() if type(result).__name__ != _LINK]
    for key, result in results:
        yield f"{CACHED}{function.__qualname__}({repr(key)[:SHOWN]})", result


_LINK = "_lru_list_elem"


def _of_generator(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the local variables of a generator or coroutine, and its position."""
    frame = next((getattr(value, name) for name in ("gi_frame", "cr_frame", "ag_frame") if hasattr(value, name)), None)
    if frame is None:
        yield path, "ended"
    elif is_user_file(frame.f_code.co_filename):
        yield path, f"instruction {frame.f_lasti}"
        yield from ((f"{name} in {value.__qualname__}", item) for name, item in frame.f_locals.items())


def _of_slots(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    for kind in type(value).__mro__:
        if "__slots__" in vars(kind) and is_user_module(kind.__module__):
            names = vars(kind)["__slots__"]
            for name in (names,) if isinstance(names, str) else names:
                if not name.startswith("__") and hasattr(value, name):
                    yield f"{path}.{name}", getattr(value, name)


#: Limits of a scan: objects, items at each end of a container, and bytes of an array.
OBJECTS, ITEMS, BYTES = 50_000, 100, 1 << 20
#: Most values of tables that members compare.
TABLES = 500
#: Batches that are scanned when a worker begins, and the share of the time that scans may take afterwards.
FIRST, SHARE = 2, 0.005
_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic, torch.dtype, torch.device, torch.Size)
_OF_MODULES = frozenset(vars(nn.Module()))
_NOT_LOOKED_AT = (Optimizer, logging.Logger, torch.utils.data.Dataset, torch.utils.data.DataLoader)

#: Most values that a message names.
SUSPECTS = 5
#: Beginning of the path of a parameter, and of an attribute of an optimizer.
PARAMETER, OPTIMIZER = "the parameter ", "the optimizer's "
#: After its first calls, a collate function is scanned once in this many calls.
EVERY = 64
#: Path of a value → a mark that differs if the value differs.
Marks = dict[str, Any]


class Strays:
    """Finds values that change while a batch is computed. For one thread."""

    def __init__(self, job: TrainingJob, strict: bool) -> None:
        """`strict`: scan at every batch."""
        self._job = job
        self._left = FIRST
        self._strict = strict
        self._free = tuple(job.recipe.local_state)
        self._harmless: set[str] = set()
        self._cost, self._looked = 0.0, time.monotonic()

    @property
    def harmless(self) -> set[str]:
        """Paths of the values that batches only leave behind."""
        return self._harmless

    def renew(self) -> None:
        """Allow a new scan if `SHARE` permits it. Call this method when an epoch or a membership begins."""
        spare = (time.monotonic() - self._looked) * SHARE
        self._left = max(self._left, 1 if self._cost <= spare else 0)

    def before(self) -> Marks | None:
        """Return the marks before a batch; None when this batch is not scanned."""
        if not self._left and not self._strict:
            return None
        self._left = max(0, self._left - 1)
        began = time.monotonic()
        marks = scan(self._job)
        self._looked = time.monotonic()
        self._cost = 2 * (self._looked - began)
        return marks

    def after(self, marks: Marks, again: Callable[[], object]) -> None:
        """Compare with the marks before the batch. `again` computes the batch once more.

        Raises EngineError with the name of a value that has changed and is not harmless.
        """
        changed = self._changed(marks, scan(self._job))
        if not changed:
            return
        moved = [path.removeprefix(PARAMETER) for path in changed if path.startswith(PARAMETER)]
        if moved:
            raise EngineError(
                f"{moved[0]} is a parameter and changes while a batch is computed, so each worker would have a "
                "different value; only the optimizer may change it. Embedding(max_norm=) and layers that set their "
                "parameters from the first batch cause this: normalize a copy in forward, or set them before train(). "
                "Move an average of weights in a callback (on_step_end). To compute with other weights for a moment, "
                "use torch.func.functional_call"
            )
        first = {path: mark for path, mark in scan(self._job, contents=True).items() if path in changed}
        again()
        now = scan(self._job, contents=True)
        # The step of an optimizer uses what the last batch of each worker has left there.
        kept = [path for path in changed if path.startswith(OPTIMIZER) or now.get(path) != first.get(path)]
        if kept:
            raise EngineError(sentence(kept[0]))
        self._harmless.update(changed)

    def _changed(self, before: Marks, after: Marks) -> list[str]:
        paths = _differing(before, after)
        return [path for path in paths if path not in self._harmless and not is_free(path, self._free)]


class Drift:
    """Values of the user's objects that have changed since this worker began, for a comparison among members.

    A value may change in a batch that is not scanned. Callbacks and hooks of optimizers change values in the same way
    on every member. So a value that differs between members, or that only some members have changed, is state that a
    batch keeps.
    """

    def __init__(self, job: TrainingJob, strays: Strays, data: Sequence[Any] = ()) -> None:
        """`data`: the data sets, if this process loads samples."""
        self._job = job
        self._strays = strays
        self._data = data
        self._before: Marks | None = None
        self._tables: Marks = {}

    def begin(self) -> None:
        """Record the marks before the first batch. Later calls do nothing."""
        if self._before is None:
            self._before = scan(self._job, own=True)
            self._tables = _tables(self._data)

    def changed(self) -> list[str]:
        """Return the paths of the values that have changed."""
        if self._before is None:
            return []
        now, free = scan(self._job, own=True), tuple(self._job.recipe.local_state)
        paths = _differing(self._before, now)
        return [path for path in paths if path not in self._strays.harmless and not is_free(path, free)]

    def grown(self) -> dict[str, str]:
        """Return the items that tables in the data sets have gained since this worker began: path → value.

        The result has at most `TABLES` items. All members choose the paths by the same rule.
        """
        free, now = tuple(self._job.recipe.local_state), _tables(self._data)
        paths = [path for path in now if path not in self._tables and " at 0x" not in path and not is_free(path, free)]
        chosen = sorted(paths, key=lambda path: zlib.crc32(path.encode()))[:TABLES]
        return {path: repr(now[path]) for path in chosen}

    def harmless(self) -> list[str]:
        """Return the paths of the values that batches only leave behind in this worker."""
        return sorted(self._strays.harmless)

    def values(self, paths: list[str]) -> list[str | None]:
        """Return the values of these paths as text, tensors as checksums; None for one that a member need not have."""
        now = scan(self._job, contents=True, own=True)
        return [None if path not in now and CACHED in path else repr(now.get(path, "absent")) for path in paths]


def _tables(data: Sequence[Any]) -> Marks:
    """Return the plain values in dicts of data sets, such as a vocabulary that grows while samples are read."""
    walk = _Tables(contents=True, own=False, besides=(Optimizer, logging.Logger))
    walk.add({f"data set {number}": value for number, value in enumerate(data)})
    return {path: mark for path, mark in walk.marks.items() if path.endswith("]") and isinstance(mark, (int, str))}


def _differing(before: Marks, after: Marks) -> list[str]:
    """Return the paths of the values that have changed. Caches of functions may gain and lose values."""
    paths = [path for path in {**after, **before} if before.get(path, after) != after.get(path, before)]
    return [path for path in paths if CACHED not in path or (path in before and path in after)]


class Collate:
    """A collate function that must not keep values between batches, because no worker collates all batches."""

    def __init__(self, function: Callable[[list[Any]], Any], free: tuple[str, ...]) -> None:
        """`free`: names that each worker may change."""
        self._function = function
        self._free = free
        self._calls = 0

    def __call__(self, samples: list[Any]) -> Any:
        """Collate samples. Raises EngineError with the name of a value of the function that has changed."""
        self._calls += 1
        if self._calls > FIRST and self._calls % EVERY:
            return self._function(samples)
        before = self._marks()
        batch = self._function(samples)
        after = self._marks()
        for path, mark in before.items():
            # The function may create a value, such as a tokenizer, that was None or absent before.
            if mark is not None and after.get(path, mark) != mark and not is_free(path, self._free):
                raise EngineError(
                    f"{path} changes while a batch is collated, so the content of a batch would depend on the batches "
                    "that a worker collated before. Compute the value from the samples alone or before train(). If it "
                    "has no influence on the batch, name it in local_state=[...]"
                )
        return batch

    def _marks(self) -> Marks:
        scan = _Scan(contents=False)
        scan.add({"fn_batch_collate": self._function})
        return scan.marks


@dataclass(frozen=True)
class Computed:
    """The result of computing a batch."""

    loss: float
    #: Digest of the states of the generators after the computation.
    drawn: str
    #: Fingerprints of the gradients; None if they were not computed.
    gradients: tuple[int, ...] | None = None


def compare_again(first: Computed, again: Callable[[], Computed], changed: Callable[[], list[str]]) -> None:
    """Compute a batch twice more from the same state and random numbers, and compare the results.

    A difference shows state that the scan cannot reach, such as a database. Raises EngineError for a difference. The
    message names the values that have `changed` since the worker began, because one of them may be the cause.
    """
    second, third = again(), again()
    if repr(first.loss) != repr(second.loss) or repr(second) != repr(third):
        what = f"loss {first.loss!r}, then {second.loss!r}, then {third.loss!r}"
        what += "" if second.gradients == third.gradients else ", and different gradients"
        raise EngineError(
            f"the same batch gives a different result when it is computed again ({what}), with the same parameters, "
            "buffers and random numbers. The model, the loss or the step function uses a value that changes between "
            "calls, for example a database, a file, the time or a counter. Each worker would get a different result. "
            "Keep the value in a buffer with buffers={...}, or change it in a callback (on_step_end)"
            + _suspects(changed())
        )
    if first.drawn != second.drawn:
        raise EngineError(
            "the model, the loss or the step function draws different random numbers when the same batch is computed "
            "again, so a cache keeps random numbers. Each worker would keep different numbers. Draw them before "
            "train(), and keep them in a buffer"
        )


def _suspects(paths: list[str]) -> str:
    return f". Changed since this worker began: {', '.join(paths[:SUSPECTS])}" if paths else ""


def is_free(path: str, free: tuple[str, ...]) -> bool:
    """Return whether each worker may change the value at this path: `free` names the path, or a part of it."""
    if free:
        bare = path.removeprefix("len(").removesuffix(")")
        bare = bare.partition(" in ")[0] if " in " in bare else bare
        within = tuple(part for name in free for part in (f"{name}.", f"{name}["))
        return bare in free or bare.startswith(within) or any(f".{name}" in bare for name in free)
    return False


def sentence(path: str) -> str:
    """Return the message about a value that changes while a batch is computed."""
    return (
        f"{path} changes while a batch is computed, so each worker would have a different value. Keep it in a buffer "
        "with buffers={...}, or change it in a callback (on_step_end) or a hook of the optimizer. For losses and "
        "metrics, use the history that train() returns; pass a metric object with update() and compute() itself, as "
        "metrics=[OBJECT]; for steps of several batches, use accumulate=. If the value has no influence on the result, "
        "name it in local_state=[...]"
    )


def scan(job: TrainingJob, contents: bool = False, own: bool = False) -> Marks:
    """Return a mark for every value of the user that computing a batch can reach.

    Args:
        contents: mark tensors by their content, not by their address and version.
        own: leave out parameters, callbacks, registered objects, and the attributes of objects of libraries.
    """
    scan = _Scan(contents, own)
    scan.add_job(job)
    return scan.marks


class _Scan:
    """A walk through the objects that the user's functions and objects refer to, each object once."""

    def __init__(self, contents: bool, own: bool = False, besides: tuple[type, ...] = _NOT_LOOKED_AT) -> None:
        """`besides`: types of objects that are left out."""
        self.marks: Marks = {}
        self._contents = contents
        self._own = own
        self._besides = besides
        self._seen: set[int] = set()

    def add_job(self, job: TrainingJob) -> None:
        """Mark the values that computing a batch can reach."""
        self._seen |= {id(job), id(job.carried)}
        self._seen.update(id(optimizer) for optimizer in job.optimizers.values())
        if self._own:
            self._seen.update(id(value) for value in (*job.callbacks, *job.recipe.state.values()))
        # This comes before attributes are followed, because a compiled model refers to its original module.
        self._seen.update(id(part) for module in job.modules for part in module.modules())
        for module in job.modules:
            for name, part in module.named_modules():
                self._module(f"model.{name}".rstrip(".") if module is job.model else f"loss.{name}".rstrip("."), part)
        losses = job.loss_function if isinstance(job.loss_function, dict) else {"loss_function": job.loss_function}
        # Metrics over the whole test set are left out: they collect values in validation, which one worker computes.
        metrics = {f"metric {name}": metric for name, metric in by_name(job.metrics).items() if not accumulates(metric)}
        registered = {} if self._own else job.recipe.state
        functions = {"fn_step_train": job.fn_step_train, "fn_args": job.fn_args}
        self.add({**losses, **functions, **metrics, **registered})
        if not self._own:
            for optimizer in (part for one in job.optimizers.values() for part in with_wrapped(one)):
                self.add({f"{OPTIMIZER}{name}": value for name, value in own_attributes(optimizer).items()})

    def add(self, roots: dict[str, Any]) -> None:
        """Mark the values that can be reached from these objects. The keys are the names of the objects."""
        waiting = deque(roots.items())
        while waiting and len(self._seen) < OBJECTS:
            path, value = waiting.popleft()
            self._value(path, value, waiting)

    def _module(self, path: str, module: nn.Module) -> None:
        waiting: deque[tuple[str, Any]] = deque()
        library = self._own and not is_user_module(type(module).__module__)
        for name, value in vars(module).items():
            if name not in _OF_MODULES and not isinstance(value, nn.Module) and not library:
                waiting.append((f"{path}.{name}", value))
        for hooks in (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks):
            waiting.extend((f"a hook of {path}", hook) for hook in hooks.values())
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.layout is torch.strided and not self._own:
                self.marks[f"{PARAMETER}{path}.{name}"] = parameter.data_ptr(), parameter._version
            if parameter is not None:
                waiting.extend((f"{path}.{name}.{key}", value) for key, value in vars(parameter).items())
            kinds = (parameter._backward_hooks, parameter._post_accumulate_grad_hooks) if parameter is not None else ()
            waiting.extend((f"a hook of {path}.{name}", hook) for kind in kinds for hook in (kind or {}).values())
        forward = type(module).forward
        if isinstance(forward, FunctionType) and id(forward) not in self._seen:
            waiting.append((f"{type(module).__name__}.forward", forward))
        while waiting and len(self._seen) < OBJECTS:
            self._value(*waiting.popleft(), waiting)

    def _value(self, path: str, value: Any, waiting: deque[tuple[str, Any]]) -> None:
        """Mark a value, and append the values inside it to `waiting`."""
        if isinstance(value, _PLAIN):
            self.marks[path] = repr(value) if isinstance(value, (float, complex, np.generic)) else value
            return
        if isinstance(value, Tensor):
            self.marks[path] = self._tensor(value)
            return
        if isinstance(value, np.ndarray):
            self.marks[path] = (value.shape, str(value.dtype), _checksum(value))
            return
        if id(value) in self._seen or isinstance(value, self._besides) or is_generator(value):
            return
        self._seen.add(id(value))
        if isinstance(value, (FunctionType, MethodType, functools.partial)):
            waiting.extend(_of_function(path, value))
        elif isinstance(value, ModuleType):
            if is_user_module(value.__name__):
                own = main_module.shared() if value.__name__ == "__main__" else vars(value)
                waiting.extend(_data_of(f"{value.__name__}.", own))
        elif isinstance(value, type):
            if is_user_module(value.__module__):
                waiting.extend(_data_of(f"{value.__name__}.", dict(vars(value))))
        else:
            self._container(path, value, waiting)

    def _container(self, path: str, value: Any, waiting: deque[tuple[str, Any]]) -> None:
        if isinstance(value, dict):
            self.marks[f"len({path})"] = len(value)
            waiting.extend((f"{path}[{key!r}]", item) for key, item in _some(value.items(), len(value)))
        elif isinstance(value, (list, tuple, deque)):
            self.marks[f"len({path})"] = len(value)
            waiting.extend((f"{path}[{i}]", item) for i, item in _some(enumerate(value), len(value)))
        elif isinstance(value, (set, frozenset)):
            self.marks[f"len({path})"] = len(value)
        waiting.extend(inside(path, value))
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict) and not (self._own and not is_user_module(type(value).__module__)):
            waiting.extend((f"{path}.{name}", item) for name, item in attributes.items())
            if is_user_module(type(value).__module__):
                waiting.append((path, type(value)))

    def _tensor(self, tensor: Tensor) -> Any:
        if not self._contents:
            return tensor.data_ptr() if tensor.layout is torch.strided else 0, tensor._version, tuple(tensor.shape)
        if tensor.is_meta:
            return tuple(tensor.shape)
        dense = tensor.detach()
        dense = dense.to_dense() if dense.layout is not torch.strided else dense
        return tuple(tensor.shape), zlib.crc32(dense.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


class _Tables(_Scan):
    """A walk that leaves out plain values in lists: they may be the last samples read, which differ between workers."""

    def _container(self, path: str, value: Any, waiting: deque[tuple[str, Any]]) -> None:
        if isinstance(value, (list, tuple, deque)):
            items = _some(enumerate(value), len(value))
            waiting.extend((f"{path}[{i}]", item) for i, item in items if not isinstance(item, _PLAIN))
        else:
            super()._container(path, value, waiting)


def _of_function(path: str, function: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values that a function of the user refers to: closure, defaults, attributes, and named globals."""
    if isinstance(function, MethodType):
        yield path, function.__self__
        yield path, function.__func__
        return
    if isinstance(function, functools.partial):
        yield from ((path, part) for part in (function.func, function.args, function.keywords))
        return
    if not is_user_file(function.__code__.co_filename) and function.__module__ != "__main__":
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"{name} in {function.__qualname__}", cell.cell_contents
        except ValueError:
            continue
    yield from ((f"a default of {path}", value) for value in function.__defaults__ or ())
    yield from ((f"{path}.{name}", value) for name, value in vars(function).items())
    for name in _names(function.__code__):
        if name in function.__globals__:
            yield name, function.__globals__[name]


def _names(code: Any) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if hasattr(constant, "co_names"):
            yield from _names(constant)


def _data_of(prefix: str, names: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the values and functions of a module or class."""
    for name, value in names.items():
        if not name.startswith("__"):
            yield f"{prefix}{name}", getattr(value, "__func__", value)


def _some(items: Iterable[Any], size: int) -> Iterator[Any]:
    """Yield the first and the last `ITEMS` items of a container."""
    for i, item in enumerate(items):
        if i < ITEMS or i >= size - ITEMS:
            yield item


def _checksum(array: np.ndarray) -> int:
    if array.dtype.hasobject:
        return 0
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return zlib.crc32((data if len(data) <= BYTES else np.ascontiguousarray(data[:: len(data) // BYTES])).data)
