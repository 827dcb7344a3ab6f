"""Learning rate schedulers: when the engine steps them, and which schedulers of a script would have no effect."""

from __future__ import annotations

import functools
import gc
import types
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CyclicLR, LRScheduler, OneCycleLR, ReduceLROnPlateau

from local_backend.elastic.errors import EngineError
from local_backend.elastic.script.job import TrainingJob, with_wrapped
from local_backend.elastic.script.recipe import Recipe, flat, inner

#: Schedulers that expect one step() per optimizer step.
PER_STEP = (OneCycleLR, CyclicLR)
#: Most objects that the search for a scheduler in callbacks and functions visits.
MOST_OBJECTS = 20_000
#: Packages whose functions and classes do not refer to schedulers of a script.
_LIBRARIES = ("torch", "numpy", "builtins", "local_backend", "callbacks")


def interval(scheduler: Any, recipe: Recipe) -> str:
    """Return the interval, "step" or "epoch", after which the engine calls `step()` of the scheduler."""
    per_step = any(isinstance(one, PER_STEP) for one in flat([scheduler]))
    return recipe.lr_scheduler_interval or ("step" if per_step else "epoch")


def goes_by_a_value(recipe: Recipe) -> bool:
    """Return whether a scheduler of the training depends on a value of the epoch."""
    return any(isinstance(one, ReduceLROnPlateau) for one in recipe.lr_scheduler.values())


def check(job: TrainingJob, mode: str) -> None:
    """Check the schedulers of a script before the training starts.

    Raises ValueError for a scheduler of another optimizer, and for a scheduler that cannot be stepped as the options
    say. Raises ValueError for a scheduler that is built from the optimizer and that the training would never step.
    """
    if job.recipe.lr_scheduler_interval is not None and not job.recipe.lr_scheduler:
        raise ValueError("lr_scheduler_interval has no effect without lr_scheduler: pass lr_scheduler=scheduler")
    for name, scheduler in job.recipe.lr_scheduler.items():
        which = f"lr_scheduler[{name!r}]" if name else "lr_scheduler"
        if name not in job.optimizers:
            names = ", ".join(repr(one) for one in job.optimizers if one)
            raise ValueError(
                f"lr_scheduler must be a dict with the names of the optimizers: {names}" if names
                else f"{which} has no optimizer of that name: use lr_scheduler=scheduler for a single optimizer"
            )
        own = {id(optimizer) for optimizer in with_wrapped(job.optimizers[name])}
        if id(getattr(scheduler, "optimizer", None)) not in own:
            raise ValueError(
                f"{which} was built from another optimizer: build {type(scheduler).__name__} from the optimizer passed "
                "to FabricModel"
            )
        if interval(scheduler, job.recipe) == "step":
            _check_per_step(which, scheduler, mode)
    if job.epochs > 1:
        _check_all_stepped(job)


def _check_per_step(which: str, scheduler: Any, mode: str) -> None:
    if isinstance(scheduler, ReduceLROnPlateau):
        raise ValueError(
            f"{which} is a ReduceLROnPlateau, which needs a value of a whole epoch: use lr_scheduler_interval='epoch'"
        )
    if mode == "async":
        raise ValueError(
            f"{which} is stepped with every optimizer step, which mode='async' does not support: use "
            "lr_scheduler_interval='epoch' or mode='exact'"
        )


def _check_all_stepped(job: TrainingJob) -> None:
    """Raise ValueError for a scheduler of the job's optimizers that neither the engine nor user code steps."""
    optimizers = {id(one): name for name, top in job.optimizers.items() for one in with_wrapped(top)}
    built = [
        item for item in gc.get_objects()
        if issubclass(type(item), LRScheduler) and id(getattr(item, "optimizer", None)) in optimizers
    ]
    if not built:
        return
    given = {id(one) for one in flat(job.recipe.lr_scheduler.values())}
    left = [one for one in built if id(one) not in given]
    if not left:
        return
    used = {id(item) for item in _reachable(_user_code(job))}
    for scheduler in flat_tops(left):
        if id(scheduler) not in used:
            name = optimizers[id(scheduler.optimizer)]
            option = f"lr_scheduler={{{name!r}: scheduler}}" if name else "lr_scheduler=scheduler"
            raise ValueError(
                f"the script built {type(scheduler).__name__} from the optimizer, but the training would never step "
                f"it: pass it as {option} to FabricModel or train()"
            )


def flat_tops(schedulers: list[Any]) -> list[Any]:
    """Return the schedulers that are not part of another one of them, in order of their class names."""
    parts = {id(one) for scheduler in schedulers for one in inner(scheduler)}
    return sorted((one for one in schedulers if id(one) not in parts), key=lambda one: type(one).__name__)


class Schedules:
    """Steps the schedulers of a training, in the same way on every member."""

    def __init__(self, job: TrainingJob) -> None:
        self._job = job
        schedulers = job.recipe.lr_scheduler.values()
        self._per_step = [one for one in schedulers if interval(one, job.recipe) == "step"]
        self._per_epoch = [one for one in schedulers if interval(one, job.recipe) == "epoch"]
        #: Ids of the schedulers that have been stepped.
        self._stepped: set[int] = set()

    def check_length(self, steps: int) -> None:
        """Raise EngineError when a OneCycleLR ends before the training. `steps`: optimizer steps of the training."""
        for scheduler in self._per_step:
            if isinstance(scheduler, OneCycleLR) and scheduler.total_steps < steps:
                raise EngineError(
                    f"OneCycleLR ends after {scheduler.total_steps} steps, but the training has {steps} optimizer "
                    f"steps: build it with total_steps={steps}"
                )

    def after_step(self) -> None:
        """Record the learning rates of the optimizer step that was just made, and step the per-step schedulers."""
        self._job.carried.rates = {name: _rate(one) for name, one in self._job.optimizers.items()}
        for scheduler in self._per_step:
            self._step(scheduler)

    def after_epoch(self, values: Mapping[str, float], monitor: str) -> None:
        """Step the per-epoch schedulers. `values`: the values of the epoch that were computed.

        ReduceLROnPlateau keeps the rate when the value `monitor` was not computed.
        """
        for scheduler in self._per_epoch:
            if not isinstance(scheduler, ReduceLROnPlateau):
                self._step(scheduler)
            elif monitor in values:
                scheduler.step(values[monitor])

    def _step(self, scheduler: Any) -> None:
        """Call step(). In its first call, hide torch's warning that optimizer.step() is not its wrapped function."""
        if id(scheduler) in self._stepped:
            scheduler.step()
            return
        self._stepped.add(id(scheduler))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*optimizer.step.*", category=UserWarning)
            scheduler.step()


def _rate(optimizer: Optimizer) -> float:
    """Return the learning rate of the first group; NaN for an optimizer without one."""
    rate = optimizer.param_groups[0].get("lr", float("nan"))
    return float(rate.detach() if isinstance(rate, Tensor) else rate)


# --- objects that the functions and callbacks of a script refer to


def _user_code(job: TrainingJob) -> list[Any]:
    """Return the user code that runs during the training. The script itself steps the schedulers in this code."""
    hooks = [
        value for part in [*job.optimizers.values(), *(m for root in job.modules for m in root.modules())]
        for name, value in vars(part).items() if "_hooks" in name and value
    ]
    functions = [job.fn_step_train, job.fn_test, job.loss_function, job.fn_batch_collate, job.worker_logger]
    return [*job.callbacks, *functions, *job.metrics, job.recipe.state, *hooks]


def _reachable(roots: Iterable[Any]) -> Iterator[Any]:
    """Yield the objects that can be reached by attributes, containers, closures and globals, each once."""
    seen: dict[int, Any] = {}
    left = list(roots)
    while left and len(seen) < MOST_OBJECTS:
        item = left.pop()
        if id(item) in seen or isinstance(item, (str, bytes, int, float, Tensor, types.ModuleType, type(None))):
            continue
        seen[id(item)] = item
        yield item
        left.extend(_parts_of(item))


def _parts_of(item: Any) -> Iterable[Any]:
    found: Iterable[Any] = ()
    if isinstance(item, dict):
        found = item.values()
    elif isinstance(item, (list, tuple, set, frozenset)):
        found = item
    elif isinstance(item, types.MethodType):
        found = [item.__self__, item.__func__]
    elif isinstance(item, functools.partial):
        found = [item.func, item.args, item.keywords]
    elif isinstance(item, types.FunctionType):
        found = [] if _is_of_library(item) else _parts_of_function(item)
    elif isinstance(item, type):
        methods = [value for value in vars(item).values() if isinstance(value, types.FunctionType)]
        found = [] if _is_of_library(item) else methods
    elif not isinstance(item, Optimizer):
        found = [getattr(item, "__dict__", {}), *type(item).__mro__]
    return found


def _parts_of_function(function: types.FunctionType) -> list[Any]:
    """Return the contents of a function's closure, its defaults, and the globals that it names."""
    cells = [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    codes = [function.__code__]
    names: set[str] = set()
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        codes.extend(part for part in code.co_consts if isinstance(part, types.CodeType))
    return [*cells, *defaults, *(function.__globals__[name] for name in sorted(names & function.__globals__.keys()))]


def _is_of_library(item: Any) -> bool:
    return (item.__module__ or "").partition(".")[0] in _LIBRARIES


def _filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - raises where nothing is in it
    except ValueError:
        return False
    return True
